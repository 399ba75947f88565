"""Chat templates in the style of published ones, each with one of the habits that matter to prompts and training."""

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

QWEN3 = (  # the reasoning of earlier turns is cut, and an empty one is put before the last answer
    "{% set ns = namespace(asked=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% set parts = m.content.split('</think>') %}"
    "{% set thought = parts[0].split('<think>')[-1].strip() if parts | length > 1 else '' %}"
    "{% if loop.index0 > ns.asked %}<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ parts[-1].lstrip('\n') }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

R1 = (  # all reasoning is cut, that of the last answer too, and the generation prompt begins it
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}{% elif m.role == 'assistant' %}"
    "<|Assistant|>{{ m.content.split('</think>')[-1] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)

LLAMA31 = (  # a system turn always, with a date and tools; contents are stripped
    "{% if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}"
    "{% set given = messages[0].role == 'system' %}"
    "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\nToday: {{ date_string }}\n"
    "{% if tools is defined and tools %}{{ tools | tojson }}\n{% endif %}"
    "{{ messages[0].content | trim if given else '' }}<|eot_id|>"
    "{% for m in (messages[1:] if given else messages) %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

GEMMA = (  # no system messages, roles that alternate, another name for the assistant; contents are stripped
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

MISTRAL = (  # the system message is part of the first user turn, and there is no generation prompt
    "{{ bos_token }}{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in (messages[1:] if system else messages) %}{% if m.role == 'user' %}"
    "[INST] {% if loop.first and system %}{{ system }}\n\n{% endif %}{{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)

MISTRAL3 = MISTRAL.replace("loop.first and system", "loop.last and system")  # the last turn, if it is the user's

DEAF = CHATML.replace("messages %}", "messages if m.role != 'system' %}")  # system messages are left out

ALL = {"chatml": CHATML, "qwen3": QWEN3, "r1": R1, "llama31": LLAMA31, "gemma": GEMMA, "mistral": MISTRAL}
