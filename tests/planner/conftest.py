"""Some tests take the shapes of measured models from the calibration tools in `scripts`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
