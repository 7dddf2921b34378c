"""How long the page of a hundred runs takes to write, and to open and draw in a browser.

    python benchmarks/report_speed.py [--quick]

25 cells of a made sweep, each with a trunk, a gradient noise and three decays. Writing: processor seconds from runs to
the finished file, on one thread. Opening and drawing: the browser's own clock, from the start of the navigation until
the page is read, and from there until every figure is drawn, one after the other; all of them are drawn, as for print,
though a reader's browser draws what is in view. Others who work on the machine make the browser's seconds longer; its
processor seconds on the page's main thread stand beside them.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from harness import circumstances, summary, write_results

from isotune.report.figures import figures_of
from isotune.report.findings import find
from isotune.report.page import Origin, make_page
from isotune.runs.trajectory import Trajectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "analyze"))
from made_sweeps import BUDGETS, drifting_optimum

GOAL_DRAW_SECONDS = 3.0
GOAL_BYTES = 8_000_000
TIMEOUT = 600_000  # milliseconds
DRAW = """async () => {
  const began = performance.now();
  dispatchEvent(new Event("beforeprint"));
  while (document.querySelector('.plot:not([data-state="drawn"])')) await new Promise(done => setTimeout(done, 5));
  return { seconds: (performance.now() - began) / 1000, figures: document.querySelectorAll(".plot").length };
}"""
READ = "() => performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd / 1000"


def main() -> None:
    num_rounds = 1 if "--quick" in sys.argv else 5
    about = circumstances()
    runs = hundred_runs()
    writing = summary([write_seconds(runs) for _ in range(num_rounds)])
    page = make(runs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_text(page, encoding="utf-8")
        opened = [open_and_draw(path) for _ in range(num_rounds)]
    drawing = summary(one["draw"] for one in opened)
    results: dict[str, Any] = {
        "runs": len(runs),
        "figures": opened[0]["figures"],
        "bytes": {"value": len(page.encode()), "goal": GOAL_BYTES, "met": len(page.encode()) <= GOAL_BYTES},
        "write_cpu_seconds": writing,
        "read_seconds": summary(one["read"] for one in opened),
        "draw_all_seconds": drawing | {"goal": GOAL_DRAW_SECONDS, "met": drawing["median"] <= GOAL_DRAW_SECONDS},
        "draw_all_cpu_seconds": summary(one["draw_cpu"] for one in opened),
    }
    for name, value in results.items():
        print(name, value["median"] if isinstance(value, dict) and "median" in value else value)
    if "--quick" not in sys.argv:
        print(write_results("report_speed", about, results))


def hundred_runs() -> list[Trajectory]:
    """Runs whose curves depend on LR and WD and whose noise is measured, with decays to three budgets."""
    rng = np.random.default_rng(0)
    made = drifting_optimum(rng, budgets=BUDGETS[:3], lr=np.arange(-11.0, -6.0), wd=np.arange(-7.0, -2.0))
    return [_measured(run, rng) for run in made]


def _measured(run: Trajectory, rng: np.random.Generator) -> Trajectory:
    lr, wd = float(run.info.learning_rate), float(run.info.weight_decay)
    loss = run.columns["val_loss"].copy()
    loss[:-1] += 0.02 * np.log2(lr * wd**0.3) * (1 - run.tokens[:-1] / BUDGETS[3])
    noise = 0.3 * 4 / lr * np.exp(0.1 * rng.standard_normal(len(loss)))
    columns = {"val_loss": loss, "precond_noise_trace": noise, "precond_gradient_sq_norm": noise / 20}
    return Trajectory(run.columns | columns, run.info)


def write_seconds(runs: list[Trajectory]) -> float:
    began = time.process_time()
    make(runs)
    return time.process_time() - began


def make(runs: list[Trajectory]) -> str:
    findings = find(runs, label="a hundred runs")
    origin = Origin(command="", source="", made_at=datetime.now(UTC))
    return make_page(findings, figures_of(findings), origin=origin)


def open_and_draw(path: Path) -> dict[str, float]:
    """Seconds of one opening in a browser of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"], timeout=TIMEOUT
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(TIMEOUT)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(path.as_uri())
        read = page.evaluate(READ)
        before = _processor_seconds(session)
        drawn = page.evaluate(DRAW)
        spent = _processor_seconds(session) - before
        browser.close()
    return {"read": read, "draw": drawn["seconds"], "draw_cpu": spent, "figures": drawn["figures"]}


def _processor_seconds(session: Any) -> float:
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


if __name__ == "__main__":
    main()
