import json
import subprocess
import sys

import elflow


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
