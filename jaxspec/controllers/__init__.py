"""Controllers, one file each. To add one, add a file here and a line below."""

from jaxspec.controllers.adaptive import Adaptive
from jaxspec.controllers.beta_ts import BetaTS
from jaxspec.controllers.cali_ts import CaliTS
from jaxspec.controllers.confidence import Confidence
from jaxspec.controllers.expected_gain import ExpectedGain
from jaxspec.controllers.fixed import Fixed
from jaxspec.controllers.length_ts import LengthTS
from jaxspec.controllers.threshold import Threshold
from jaxspec.decoding.controller import Controller

CONTROLLERS: dict[str, type[Controller]] = {
    kind.name: kind for kind in (Fixed, Threshold, Adaptive, BetaTS, CaliTS, LengthTS, ExpectedGain, Confidence)
}
