"""The numbers that the papers print, with where they stand: facts, taken from their tables.

EAGLE is arXiv:2401.15077, EESD arXiv:2406.03853, Draft & Verify arXiv:2309.08168, and EDD "Faster Speculative Decoding
via Effective Draft Decoder with Pruned Candidate Tree". Names end in the number of the table. Hardware, targets and
texts are the papers' own.
"""

Rows = list[list[str]]


def rows(text: str) -> Rows:
    """A row a line, cells between bars."""
    return [[part.strip() for part in line.split("|")] for line in text.strip().splitlines()]


EAGLE_DATA = ("HumanEval", "GSM8K", "Alpaca")
EAGLE_1 = rows("""
Vicuna 7B, T = 0       | EAGLE | 3.33× | 4.29 | 3.01× | 4.00 | 2.79× | 3.86
Vicuna 13B, T = 0      | EAGLE | 3.58× | 4.39 | 3.08× | 3.97 | 3.03× | 3.95
Vicuna 33B, T = 0      | EAGLE | 3.67× | 4.28 | 3.25× | 3.94 | 2.97× | 3.61
LLaMA2-Chat 7B, T = 0  | EAGLE | 3.17× | 4.24 | 2.91× | 3.82 | 2.78× | 3.71
LLaMA2-Chat 13B, T = 0 | EAGLE | 3.76× | 4.52 | 3.20× | 4.03 | 3.01× | 3.83
LLaMA2-Chat 70B, T = 0 | EAGLE | 3.52× | 4.42 | 3.03× | 3.93 | 2.97× | 3.77
Vicuna 7B, T = 1       | EAGLE | 2.39× | 3.43 | 2.34× | 3.29 | 2.21× | 3.30
Vicuna 13B, T = 1      | EAGLE | 2.65× | 3.63 | 2.57× | 3.60 | 2.45× | 3.57
Vicuna 33B, T = 1      | EAGLE | 2.76× | 3.62 | 2.77× | 3.60 | 2.52× | 3.32
LLaMA2-Chat 7B, T = 1  | EAGLE | 2.61× | 3.79 | 2.40× | 3.52 | 2.29× | 3.33
LLaMA2-Chat 13B, T = 1 | EAGLE | 2.89× | 3.78 | 2.82× | 3.67 | 2.66× | 3.55
LLaMA2-Chat 70B, T = 1 | EAGLE | 2.92× | 3.76 | 2.74× | 3.58 | 2.65× | 3.47
""")
EAGLE_2 = rows("""
Vicuna 7B, T = 0       | MT-bench | 3.94 | 0.79 | 0.74 | 0.72 | 0.73 | 0.67
Vicuna 13B, T = 0      | MT-bench | 3.98 | 0.79 | 0.74 | 0.72 | 0.74 | 0.70
Vicuna 33B, T = 0      | MT-bench | 3.68 | 0.74 | 0.69 | 0.67 | 0.67 | 0.66
LLaMA2-Chat 7B, T = 0  | MT-bench | 3.62 | 0.76 | 0.69 | 0.67 | 0.68 | 0.68
LLaMA2-Chat 13B, T = 0 | MT-bench | 3.90 | 0.77 | 0.69 | 0.69 | 0.70 | 0.71
LLaMA2-Chat 70B, T = 0 | MT-bench | 3.81 | 0.75 | 0.69 | 0.65 | 0.64 | 0.64
Vicuna 7B, T = 1       | MT-bench | 3.17 | 0.71 | 0.68 | 0.66 | 0.66 | 0.65
Vicuna 13B, T = 1      | MT-bench | 3.20 | 0.73 | 0.68 | 0.68 | 0.67 | 0.69
Vicuna 33B, T = 1      | MT-bench | 3.22 | 0.71 | 0.67 | 0.64 | 0.64 | 0.64
LLaMA2-Chat 7B, T = 1  | MT-bench | 3.30 | 0.71 | 0.66 | 0.66 | 0.66 | 0.64
LLaMA2-Chat 13B, T = 1 | MT-bench | 3.45 | 0.73 | 0.69 | 0.66 | 0.67 | 0.67
LLaMA2-Chat 70B, T = 1 | MT-bench | 3.46 | 0.73 | 0.67 | 0.64 | 0.66 | 0.65
""")
EAGLE_5 = rows("""
Vicuna 7B       | EAGLE | 3.20 | 3.94 | +0.74
Vicuna 13B      | EAGLE | 3.23 | 3.98 | +0.75
Vicuna 33B      | EAGLE | 2.97 | 3.68 | +0.71
LLaMA2-Chat 7B  | EAGLE | 3.00 | 3.62 | +0.62
LLaMA2-Chat 13B | EAGLE | 3.18 | 3.90 | +0.68
LLaMA2-Chat 70B | EAGLE | 3.12 | 3.81 | +0.69
""")
EAGLE_7_SIZES = (1, 2, 3, 4)
EAGLE_7 = rows("""
Vicuna 7B       | EAGLE | 2.90× | 2.87× | 2.65× | 2.76× | 1.97×
LLaMA2-Chat 70B | EAGLE | 3.01× | 2.81× | 2.50× | 2.40× | 1.99×
""")

EESD_DATA = ("GSM8K", "XSum", "HumanEval", "MT-bench")
EESD_1 = rows("""
LLaMA-2-70B      | Vanilla SD, 7B     | 80.35 | 1.88× | 67.30 | 1.46× | – | – | – | –
LLaMA-2-70B      | Self SD            | 78.64 | 1.37× | 68.60 | 1.23× | – | – | – | –
LLaMA-2-70B      | Medusa             | 33.75 | 1.73× | 25.69 | 1.42× | – | – | – | –
LLaMA-2-70B      | EESD, Beta-TS      | 58.79 | 2.13× | 51.91 | 1.80× | – | – | – | –
LLaMA-2-70B      | EESD, Cali-TS      | 62.25 | 2.29× | 53.41 | 1.86× | – | – | – | –
LLaMA-2-70B-chat | EESD, Beta-TS      | 47.76 | 1.79× | 40.73 | 1.51× | – | – | – | –
LLaMA-2-70B-chat | EESD, Cali-TS      | 48.23 | 1.82× | 41.85 | 1.55× | – | – | – | –
LLaMA-2-13B      | Vanilla SD, 7B     | 84.59 | 0.96× | 75.63 | 0.77× | 87.32 | 0.97× | 90.01 | 1.02×
LLaMA-2-13B      | Vanilla SD, 1.1B   | 82.49 | 1.19× | 75.42 | 1.05× | – | – | – | –
LLaMA-2-13B      | Self SD            | 80.53 | 1.37× | 77.61 | 1.35× | 79.93 | 1.36× | 89.25 | 1.58×
LLaMA-2-13B      | Medusa             | 31.71 | 1.77× | 25.03 | 1.53× | 26.67 | 1.61× | 43.08 | 1.89×
LLaMA-2-13B      | EESD, Beta-TS      | 57.22 | 1.91× | 55.46 | 1.84× | 61.43 | 2.08× | 62.15 | 2.03×
LLaMA-2-13B      | EESD, Cali-TS      | 58.97 | 2.04× | 56.45 | 1.92× | 62.87 | 2.15× | 64.31 | 2.11×
CodeLLaMA-2-13B  | EESD, Beta-TS      | – | – | – | – | 68.94 | 2.21× | – | –
CodeLLaMA-2-13B  | EESD, Cali-TS      | – | – | – | – | 70.15 | 2.45× | – | –
Vicuna-13B       | Vanilla SD, 68M    | 26.87 | 1.28× | 23.05 | 1.17× | – | – | – | –
Vicuna-13B       | Self SD            | 68.07 | 1.24× | 60.38 | 1.12× | – | – | 86.20 | 1.46×
Vicuna-13B       | Medusa             | 26.08 | 1.53× | 15.55 | 1.21× | – | – | 30.11 | 1.71×
Vicuna-13B       | EESD, Beta-TS      | 43.01 | 1.57× | 32.23 | 1.25× | – | – | 52.82 | 1.82×
Vicuna-13B       | EESD, Cali-TS      | 43.53 | 1.59× | 32.50 | 1.27× | – | – | 54.83 | 1.89×
""")
# The copy at hand lacks what Table 5 has of the 70B model on XSum with Thompson sampling.
EESD_5 = rows("""
LLaMA-2-70B, GSM8K | Vanilla SD, 7B | 1.88× | 2.02×
LLaMA-2-70B, GSM8K | Self SD        | 1.37× | 1.44×
LLaMA-2-13B, GSM8K | Vanilla SD, 7B | 0.96× | 0.99×
LLaMA-2-13B, GSM8K | Self SD        | 1.37× | 1.41×
LLaMA-2-13B, XSum  | Vanilla SD, 7B | 0.77× | 0.85×
LLaMA-2-13B, XSum  | Self SD        | 1.35× | 1.40×
""")
# With trees as section 5.7 has them: the best on GSM8K and on XSum.
EESD_7 = rows("""
LLaMA-2-70B, GSM8K | EESD, Cali-TS | 2.29× | 2.48×
LLaMA-2-70B, XSum  | EESD, Cali-TS | 1.86× | 1.96×
LLaMA-2-13B, GSM8K | EESD, Cali-TS | 2.04× | 2.18×
LLaMA-2-13B, XSum  | EESD, Cali-TS | 1.92× | 2.12×
""")
EESD_8 = rows("""
LLaMA-2-70B | EESD, Beta-TS | 5.517 | 25.203 | 0.017 | 4.076
LLaMA-2-70B | EESD, Cali-TS | 5.022 | 24.106 | 0.426 | 4.023
LLaMA-2-13B | EESD, Beta-TS | 3.656 | 7.986 | 0.014 | 0.526
LLaMA-2-13B | EESD, Cali-TS | 3.436 | 7.392 | 0.355 | 0.507
""")
EESD_10 = rows("""
LLaMA-2-70B, GSM8K | EESD, Beta-TS | 0.52 | 0.68 | 58.79 | 19.36 | 2.13×
LLaMA-2-70B, GSM8K | EESD, Cali-TS | 0.56 | 0.71 | 62.25 | 20.80 | 2.29×
LLaMA-2-13B, GSM8K | EESD, Beta-TS | 0.50 | 0.67 | 57.22 | 44.68 | 1.91×
LLaMA-2-13B, GSM8K | EESD, Cali-TS | 0.52 | 0.69 | 58.97 | 47.54 | 2.04×
LLaMA-2-70B, XSum  | EESD, Cali-TS | 0.46 | 0.65 | 53.41 | 15.25 | 1.86×
LLaMA-2-13B, XSum  | EESD, Cali-TS | 0.49 | 0.67 | 56.45 | 43.80 | 1.92×
LLaMA-2-13B, HumanEval | EESD, Cali-TS | 0.55 | 0.73 | 62.87 | 50.49 | 2.15×
LLaMA-2-13B, MT-bench  | EESD, Cali-TS | 0.58 | 0.72 | 64.31 | 49.99 | 2.11×
""")

EDD_DATA = ("MT-bench", "GSM8K", "CNN/DM", "HumanEval")
EDD_1 = rows("""
LLaMA2-Chat 7B  | VDM      | 1.49× | 0.39 | 1.96 | 1.37× | 0.36 | 1.80 | 1.11× | 0.30 | 1.51 | 1.69× | 0.40 | 2.15
LLaMA2-Chat 7B  | Medusa-1 | 1.48× | 0.34 | 1.71 | 1.40× | 0.33 | 1.63 | 1.20× | 0.28 | 1.41 | 1.78× | 0.39 | 1.97
LLaMA2-Chat 7B  | EAGLE    | 1.82× | 0.50 | 2.50 | 1.75× | 0.51 | 2.54 | 1.50× | 0.38 | 1.92 | 2.01× | 0.55 | 2.73
LLaMA2-Chat 7B  | EDD      | 1.97× | 0.55 | 2.73 | 1.83× | 0.51 | 2.57 | 1.58× | 0.41 | 2.06 | 2.09× | 0.57 | 2.87
LLaMA2-Chat 13B | VDM      | 1.53× | 0.39 | 1.95 | 1.44× | 0.37 | 1.84 | 1.14× | 0.30 | 1.52 | 1.68× | 0.40 | 2.03
LLaMA2-Chat 13B | Medusa-1 | 1.59× | 0.36 | 1.71 | 1.46× | 0.32 | 1.58 | 1.26× | 0.28 | 1.40 | 1.72× | 0.38 | 1.91
LLaMA2-Chat 13B | EAGLE    | 1.95× | 0.53 | 2.66 | 1.99× | 0.51 | 2.54 | 1.48× | 0.41 | 2.04 | 2.09× | 0.55 | 2.75
LLaMA2-Chat 13B | EDD      | 2.03× | 0.54 | 2.68 | 2.08× | 0.54 | 2.68 | 1.61× | 0.42 | 2.10 | 2.16× | 0.57 | 2.86
Vicuna1.5 7B    | VDM      | 1.53× | 0.40 | 2.02 | 1.37× | 0.47 | 1.83 | 1.11× | 0.37 | 1.51 | 1.69× | 0.51 | 2.16
Vicuna1.5 7B    | Medusa-1 | 1.58× | 0.36 | 1.81 | 1.37× | 0.33 | 1.63 | 1.17× | 0.28 | 1.41 | 1.81× | 0.41 | 2.06
Vicuna1.5 7B    | EAGLE    | 1.91× | 0.54 | 2.70 | 1.73× | 0.49 | 2.44 | 1.45× | 0.36 | 1.81 | 1.89× | 0.52 | 2.60
Vicuna1.5 7B    | EDD      | 2.00× | 0.55 | 2.77 | 1.81× | 0.51 | 2.54 | 1.58× | 0.41 | 2.05 | 2.00× | 0.55 | 2.77
Vicuna1.5 13B   | VDM      | 1.58× | 0.40 | 2.01 | 1.43× | 0.37 | 1.83 | 1.14× | 0.30 | 1.49 | 1.72× | 0.43 | 2.13
Vicuna1.5 13B   | Medusa-1 | 1.66× | 0.38 | 1.81 | 1.47× | 0.33 | 1.63 | 1.24× | 0.28 | 1.39 | 1.80× | 0.39 | 1.95
Vicuna1.5 13B   | EAGLE    | 2.01× | 0.54 | 2.68 | 1.68× | 0.47 | 2.34 | 1.36× | 0.38 | 1.90 | 1.83× | 0.51 | 2.55
Vicuna1.5 13B   | EDD      | 2.08× | 0.56 | 2.80 | 1.80× | 0.49 | 2.46 | 1.60× | 0.42 | 2.09 | 1.95× | 0.53 | 2.63
""")
EDD_2 = rows("""
LLaMA2-Chat 7B  | VCT     | 2.49× | 0.71 | 3.56 | 2.36× | 0.69 | 3.44 | 1.76× | 0.50 | 2.53 | 2.83× | 0.78 | 3.91
LLaMA2-Chat 7B  | CAPE    | 2.56× | 0.67 | 3.35 | 2.38× | 0.63 | 3.13 | 1.83× | 0.49 | 2.47 | 2.93× | 0.74 | 3.71
LLaMA2-Chat 7B  | EAGLE-2 | 2.87× | 0.67 | 3.99 | 2.68× | 0.64 | 3.83 | 1.91× | 0.46 | 2.77 | 3.13× | 0.72 | 4.31
LLaMA2-Chat 7B  | PCT     | 3.04× | 0.74 | 3.99 | 2.87× | 0.72 | 3.80 | 2.04× | 0.69 | 2.74 | 3.35× | 0.75 | 4.49
LLaMA2-Chat 13B | VCT     | 2.63× | 0.74 | 3.71 | 2.97× | 0.72 | 3.61 | 1.86× | 0.51 | 2.53 | 3.13× | 0.78 | 3.88
LLaMA2-Chat 13B | CAPE    | 2.68× | 0.71 | 3.53 | 3.07× | 0.70 | 3.52 | 1.81× | 0.47 | 2.35 | 3.15× | 0.73 | 3.66
LLaMA2-Chat 13B | EAGLE-2 | 3.08× | 0.69 | 4.15 | 3.27× | 0.71 | 4.24 | 2.27× | 0.53 | 3.15 | 3.35× | 0.71 | 4.26
LLaMA2-Chat 13B | PCT     | 3.27× | 0.75 | 4.13 | 3.49× | 0.75 | 4.24 | 2.39× | 0.70 | 3.03 | 3.62× | 0.74 | 4.39
Vicuna1.5 7B    | VCT     | 2.51× | 0.72 | 3.59 | 2.43× | 0.71 | 3.54 | 1.78× | 0.51 | 2.55 | 2.80× | 0.78 | 3.90
Vicuna1.5 7B    | CAPE    | 2.56× | 0.67 | 3.37 | 2.36× | 0.62 | 3.09 | 1.83× | 0.50 | 2.49 | 2.90× | 0.72 | 3.62
Vicuna1.5 7B    | EAGLE-2 | 3.01× | 0.70 | 4.20 | 2.70× | 0.65 | 3.88 | 2.03× | 0.47 | 2.80 | 3.05× | 0.70 | 4.19
Vicuna1.5 7B    | PCT     | 3.08× | 0.74 | 4.09 | 2.95× | 0.74 | 3.89 | 2.04× | 0.70 | 2.70 | 3.30× | 0.72 | 4.22
Vicuna1.5 13B   | VCT     | 2.76× | 0.75 | 3.77 | 2.51× | 0.64 | 3.19 | 1.92× | 0.51 | 2.53 | 2.93× | 0.72 | 3.58
Vicuna1.5 13B   | CAPE    | 2.78× | 0.73 | 3.65 | 2.57× | 0.58 | 2.92 | 1.97× | 0.49 | 2.45 | 2.99× | 0.71 | 3.56
Vicuna1.5 13B   | EAGLE-2 | 3.17× | 0.73 | 4.35 | 2.77× | 0.64 | 3.82 | 2.17× | 0.50 | 3.01 | 3.15× | 0.69 | 4.12
Vicuna1.5 13B   | PCT     | 3.38× | 0.75 | 4.36 | 2.89× | 0.70 | 3.72 | 2.33× | 0.70 | 2.84 | 3.32× | 0.72 | 4.07
""")

VERIFY_DATA = ("CNN/DM", "XSum")
VERIFY_1 = rows("""
LLaMA-2-13B, T = 0        | Autoregressive   | 0.106 | 1.00× | 0.124 | 1.00×
LLaMA-2-13B, T = 0        | Self-Speculative | 0.108 | 1.57× | 0.125 | 1.43×
LLaMA-2-13B, T = 0.2      | Self-Speculative | 0.111 | 1.53× | 0.117 | 1.38×
LLaMA-2-13B-Chat, T = 0   | Self-Speculative | 0.143 | 1.41× | 0.109 | 1.22×
LLaMA-2-13B-Chat, T = 0.2 | Self-Speculative | 0.145 | 1.38× | 0.108 | 1.21×
LLaMA-2-70B, T = 0        | Autoregressive   | 0.130 | 1.00× | 0.118 | 1.00×
LLaMA-2-70B, T = 0        | Self-Speculative | 0.130 | 1.99× | 0.118 | 1.60×
LLaMA-2-70B, T = 0.2      | Self-Speculative | 0.131 | 1.96× | 0.110 | 1.56×
""")
VERIFY_3 = rows("""
LLaMA-2-13B, CNN/DM | K = 2      | 0.924 | 1.37×
LLaMA-2-13B, CNN/DM | K = 4      | 0.865 | 1.44×
LLaMA-2-13B, CNN/DM | K = 6      | 0.807 | 1.42×
LLaMA-2-13B, CNN/DM | K = 8      | 0.748 | 1.36×
LLaMA-2-13B, CNN/DM | γ = 0.2, K = 12 | 0.749 | 1.38×
LLaMA-2-13B, CNN/DM | γ = 0.4, K = 12 | 0.852 | 1.52×
LLaMA-2-13B, CNN/DM | γ = 0.6, K = 12 | 0.909 | 1.58×
LLaMA-2-13B, CNN/DM | γ = 0.8, K = 12 | 0.935 | 1.55×
LLaMA-2-13B, CNN/DM | adaptive, K = 12 | 0.919 | 1.57×
""")
VERIFY_5 = rows("""
LLaMA-2-13B, CNN/DM | Autoregressive   | –    | –    | –       | 56.3
LLaMA-2-13B, CNN/DM | Self-Speculative | 25.5 | 10.7 | 0.00061 | 36.8
""")
VERIFY_14 = rows("""
CodeLLaMA-13B, HumanEval pass@1     | Autoregressive   | 0.311 | 1.00×
CodeLLaMA-13B, HumanEval pass@1     | Self-Speculative | 0.317 | 1.46×
CodeLLaMA-13B, GSM8K                | Autoregressive   | 0.104 | 1.00×
CodeLLaMA-13B, GSM8K                | Self-Speculative | 0.101 | 1.35×
CodeLLaMA-13B-Instruct, GSM8K       | Autoregressive   | 0.223 | 1.00×
CodeLLaMA-13B-Instruct, GSM8K       | Self-Speculative | 0.213 | 1.26×
""")
