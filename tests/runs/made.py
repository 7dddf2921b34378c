"""Studies made by hand, without training and without torch: every loss is a function of its position."""

from isotune.recipe import ModelShape, Setup, constant, wsd
from isotune.runs import CurveWriter, Evaluation, Numerics, RunInfo, Study

MODEL = ModelShape(width=16, num_layers=1, num_heads=2, ffn_width=32, vocabulary_size=32)
STEP = 64  # tokens: batches of 4 sequences of 16 tokens
NUMERICS = Numerics(torch="2.6", device="cpu", compiled=False, threads=1, micro_batch_size=None, world_size=1)
EVALUATION = Evaluation(every_tokens=10 * STEP, windows=8, final_windows=32)
FINGERPRINT = "f" * 32


def setup(**changes):
    return Setup(model=MODEL, sequence_length=16, **changes)


def made_constant(num_steps, *, learning_rate=2**-6, **changes):
    return constant(
        setup(**changes), tokens=num_steps * STEP, learning_rate=learning_rate, weight_decay=0.5, batch_size=4
    )


def made_wsd(num_steps, *, learning_rate=2**-6, decay_steps=4, **changes):
    return wsd(
        setup(**changes),
        tokens=num_steps * STEP,
        learning_rate=learning_rate,
        weight_decay=0.5,
        batch_size=4,
        decay_tokens=decay_steps * STEP,
    )


def made_info(**changes):
    """What is known of a run that nobody trained: all that a RunInfo must say."""
    settings = {
        "learning_rate": 2**-9,
        "weight_decay": 0.25,
        "batch_size": 4,
        "sequence_length": 64,
        "weight_decay_convention": "coupled",
        "schedule": "constant",
        "seed": 0,
        "status": "finished",
        "source": "made",
    }
    return RunInfo(**settings | changes)


def made_study(folder):
    return Study.create(folder, setup(), "made", FINGERPRINT, EVALUATION, NUMERICS)


def loss_at(recipe, step):
    """Another one for every seed and learning rate, so that mixed rows would show."""
    return 10 * recipe.setup.seed + step.learning_rate + 1 / step.tokens


def write_rows(folder, segment, *, through_tokens=None):
    through_tokens = segment.end_tokens if through_tokens is None else through_tokens
    writer = CurveWriter(folder / "curve.jsonl", -1)
    if segment.start_tokens == 0:
        writer.write([{"tokens": 0, "val_loss": 5.0}])
    steps = segment.recipe.steps(segment.start_tokens, through_tokens)
    writer.write({"tokens": step.tokens, "train_loss": loss_at(segment.recipe, step)} for step in steps)
    writer.close()


def train_by_hand(study, recipe, *, diverged_at_tokens=None, with_states=True):
    """Publishes all segments that the study lacks of a recipe; says how many tokens that were."""
    tokens = 0
    for segment in study.missing(recipe):
        folder = study.new_attempt(segment, NUMERICS)
        diverges = diverged_at_tokens is not None and diverged_at_tokens <= segment.end_tokens
        write_rows(folder, segment, through_tokens=diverged_at_tokens - STEP if diverges else None)
        status = "diverged" if diverges else "finished"
        study.describe(folder, segment, NUMERICS, status, diverged_at_tokens if diverges else None)
        if with_states and not diverges:
            state = study.state_path(segment.end_state)
            state.parent.mkdir(exist_ok=True)
            state.touch()
        assert study.publish(folder, segment.id)
        tokens += segment.tokens
        if diverges:
            break
    return tokens
