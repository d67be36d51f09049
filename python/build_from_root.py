"""The build backend of the repository's root: maturin, in the folder of the package."""

import os

os.chdir(os.path.dirname(os.path.abspath(__file__)))

from maturin import *  # noqa: E402, F403
