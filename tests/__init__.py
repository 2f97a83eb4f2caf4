import sys
from pathlib import Path

# Tests import the modules of examples/robot_brain and of docs/_ext by name, as these import each other.
ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "examples" / "robot_brain"), str(ROOT / "docs" / "_ext")]
