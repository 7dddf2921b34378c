"""`isotune tune --command`: tunes foreign_trainer.py, which fails, hangs and diverges in parts of the range."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

TRAINER = Path(__file__).with_name("foreign_trainer.py")
COMMAND = f"{sys.executable} {TRAINER} --lr {{learning_rate}} --wd {{weight_decay}} --samples {{tokens}} --dir {{out}}"


def main() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "--command": COMMAND,
            "--metrics": "{out}/log.jsonl",
            "--wd-convention": "coupled",
            "--tokens": "6400",
            "--tokens-per-step": "16",
            "--lr": "2^-11..4",
            "--wd": "2^-9..1",
            "--octaves": "1",
            "--tolerance": "2",
            "--max-tokens": "100K",
            "--timeout-hours": str(5 / 3600),
            "--study": folder,
        }
        flat = [word for option in options.items() for word in option]
        tune = [sys.executable, "-m", "isotune", "tune", *flat, "--json", "--no-report"]
        done = subprocess.run(tune, stdout=subprocess.PIPE, text=True, check=True)
        endings = [json.loads(line)["status"] for line in (Path(folder) / "answers.jsonl").read_text().splitlines()]
    result = json.loads(done.stdout)["result"]
    best = result["recommendation"]
    print(f"LR {best['learning_rate']:.4g}, WD {best['weight_decay']:.4g}; ended: {result['stopped']}; runs: {endings}")
    return {"learning_rate": best["learning_rate"], "stopped": result["stopped"], "endings": endings}


if __name__ == "__main__":
    main()
