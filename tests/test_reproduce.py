import json
import subprocess
import sys

import elflow
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


def test_toys_from_the_command_line(tmp_path):
    command = [sys.executable, "-m", "elflow.reproduce.toys", "moons", "--output", str(tmp_path / "out")]
    run = subprocess.run([*command, "--steps", "20"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["moons.elf", "moons.json", "moons.png"]
    assert (tmp_path / "out" / "moons.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / "out" / "moons.json").read_text())
    assert numbers["gap"] > 4 * numbers["error"]
    assert f"{numbers['gap']:.4f}" in run.stdout
    assert elflow.load(tmp_path / "out" / "moons.elf").features == 2
    wrong = subprocess.run([*command, "--steps", "0"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "--steps must be at least 1, got 0" in wrong.stderr
