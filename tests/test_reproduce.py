import subprocess
import sys

from elflow.functional import lipschitz
from elflow.reproduce import networks


def test_networks_draws_a_picture(tmp_path):
    path = tmp_path / "folder" / "networks.png"
    constants = networks.draw(path, units=4, seed=3)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(path.parent.iterdir()) == [path]
    assert constants["FELU"] == lipschitz(*networks.random_network(4, 3)).item()


def test_networks_from_the_command_line(tmp_path):
    command = [sys.executable, "-m", "elflow.reproduce.networks", "--output", str(tmp_path / "n.png")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "FELU network of 5 units: exact Lipschitz constant 3.097097" in run.stdout
    wrong = subprocess.run([*command, "--units", "0"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "--units must be at least 1, got 0" in wrong.stderr
