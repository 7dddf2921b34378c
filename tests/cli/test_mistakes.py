"""Mistakes: each ends in one sentence with a remedy and exit code 2, no traceback, nothing of an earlier run lost."""

import json
import struct

import numpy as np
import pytest


def assert_one_sentence(done, *words):
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("training ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("isotune: ")
    assert "Traceback" not in done.stderr
    assert ":" in lines[0].removeprefix("isotune: "), "no remedy after a colon"
    for word in words:
        assert word in lines[0], lines[0]


def everything_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_unknown_key_in_a_recipe(isotune, tiny_recipe):
    tiny_recipe.write_text(tiny_recipe.read_text().replace("weight_decay =", "weight_decya ="))
    assert_one_sentence(isotune("train", tiny_recipe), "weight_decya", "did you mean 'weight_decay'")


def test_negative_tokens(isotune, tiny_recipe):
    assert_one_sentence(isotune("train", tiny_recipe, "--tokens", "-5"), "-5", "negative")


@pytest.mark.parametrize("words", [("train", "nano-wsd"), ("tune",), ("sweep", "plan", "nano-wsd")])
def test_an_empty_name_is_not_the_current_folder(isotune, tmp_path, words):
    assert_one_sentence(isotune(*words, "--study", ""), "--study", "an empty name", "leave the option out")
    assert not everything_in(tmp_path)


def test_a_learning_rate_that_is_no_number(isotune, tiny_recipe):
    assert_one_sentence(isotune("train", tiny_recipe, "--lr", "fast"), "fast", "2^-10")


def test_a_batch_that_is_not_a_multiple_of_the_microbatch(isotune, tiny_recipe):
    done = isotune("train", tiny_recipe, "--batch-size", 8, "--micro-batch-size", 3)
    assert_one_sentence(done, "batch_size=8", "micro_batch_size=3", "try 6 or 9")


def test_a_recipe_that_does_not_exist(isotune, tiny_recipe):
    assert_one_sentence(isotune("train", "tinny.toml"), "tinny.toml", "did you mean tiny.toml")


def test_a_shipped_recipe_that_does_not_exist(isotune):
    assert_one_sentence(isotune("train", "nano-wds"), "nano-wds", "nano-wsd")


def test_a_file_that_is_not_toml(isotune, tiny_recipe):
    tiny_recipe.write_text("model = = 3")
    assert_one_sentence(isotune("train", tiny_recipe), "not TOML", "line 1")


def test_a_corpus_that_does_not_exist(isotune, tiny_recipe):
    assert_one_sentence(isotune("train", tiny_recipe, "--corpus", "corpora/pile"), "corpora/pile")


def test_a_truncated_nanogpt_file(isotune, tiny_recipe, tmp_path):
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "train.bin").write_bytes(np.arange(1000, dtype="<u2").tobytes()[:-1])
    (folder / "val.bin").write_bytes(np.arange(1000, dtype="<u2").tobytes())
    assert_one_sentence(isotune("train", tiny_recipe, "--corpus", folder), "train.bin")


def test_a_truncated_llm_c_file(isotune, tiny_recipe, tmp_path):
    folder = tmp_path / "tokens"
    folder.mkdir()
    header = struct.pack("<256i", 20240520, 1, 5000, *[0] * 253)
    for name in ("x_train_000001.bin", "x_val_000000.bin"):
        (folder / name).write_bytes(header + np.zeros(1000, dtype="<u2").tobytes())
    assert_one_sentence(isotune("train", tiny_recipe, "--corpus", folder), "5000")


def test_tokens_that_the_model_does_not_know(isotune, tiny_recipe, tmp_path):
    folder = tmp_path / "tokens"
    folder.mkdir()
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(np.full(40_000, 999, dtype="<u2").tobytes())
    done = isotune("train", tiny_recipe, "--corpus", folder)
    assert_one_sentence(done, "999", "vocabulary_size")


def test_more_tokens_than_the_corpus_has(isotune, tiny_recipe):
    done = isotune("train", tiny_recipe, "--tokens", "100M")
    assert_one_sentence(done, "more than corpus sympy", "max_epochs = 5")


def test_text_that_is_no_text(isotune, tmp_path):
    (tmp_path / "noise.txt").write_bytes(b"some words, then \xff\xfe\x00\x9c")
    done = isotune("prepare", "noise.txt", "--out", "out", "--tokenizer", "bytes")
    assert_one_sentence(done, "noise.txt", "UTF-8")


def test_json_lines_without_a_text(isotune, tmp_path):
    (tmp_path / "lines.jsonl").write_text('{"content": "hello"}\n')
    done = isotune("prepare", "lines.jsonl", "--out", "out", "--tokenizer", "bytes")
    assert_one_sentence(done, "line 1", "--text-key")


def test_an_input_that_does_not_exist(isotune):
    assert_one_sentence(isotune("prepare", "nothing.txt", "--out", "out"), "nothing.txt")


def test_a_study_of_another_root(isotune, tiny_recipe, trained):
    before = everything_in(trained)
    tiny_recipe.write_text(tiny_recipe.read_text().replace("num_layers = 1", "num_layers = 2"))
    assert_one_sentence(isotune("train", tiny_recipe, "--study", "study"), "another model", "--study")
    assert everything_in(trained) == before


def test_a_study_of_other_numerics(isotune, tiny_recipe, trained):
    before = everything_in(trained)
    done = isotune("train", tiny_recipe, "--study", "study", "--micro-batch-size", 2, "--lr", "2^-9")
    assert_one_sentence(done, "micro_batch_size", "--allow-mixed-numerics")
    assert everything_in(trained) == before


def test_another_evaluation_than_the_study_has(isotune, tiny_recipe, trained):
    done = isotune("train", tiny_recipe, "--study", "study", "--lr", "2^-9", "--eval-every", "6400")
    assert_one_sentence(done, "every_tokens=3200", "--eval")


def test_a_folder_that_is_not_a_study(isotune, tiny_recipe, tmp_path):
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "draft.txt").write_text("precious")
    assert_one_sentence(isotune("train", tiny_recipe, "--study", "papers"), "papers", "--study")
    assert_one_sentence(isotune("runs", "list", "papers"), "papers", "study.json")
    assert (tmp_path / "papers" / "draft.txt").read_text() == "precious"


def test_a_state_cut_in_half_costs_only_what_it_held(isotune, tiny_recipe, trained):
    whole = everything_in(trained)
    for state in (trained / "states").iterdir():
        state.write_bytes(state.read_bytes()[: state.stat().st_size // 2])
    command = ("train", tiny_recipe, "--study", "study", "--tokens", "25600", "--quiet")
    for _ in whole:  # each complaint names one state; its remedy is to delete that one
        done = isotune(*command)
        if done.returncode == 0:
            break
        assert_one_sentence(done, "cannot be read", "delete")
        (trained / "states" / done.stderr.split("states/")[1].split(" ")[0]).unlink()
    assert done.returncode == 0
    after = everything_in(trained)
    curves = [path for path in whole if path.name == "curve.jsonl"]
    assert all(after[path] == whole[path] for path in curves)


def test_a_damaged_study_file(isotune, trained):
    (trained / "study.json").write_text((trained / "study.json").read_text()[:100])
    assert_one_sentence(isotune("runs", "list", "study"), "study.json", "damaged")


def test_a_study_of_a_later_format(isotune, trained):
    description = json.loads((trained / "study.json").read_text()) | {"format": 99}
    (trained / "study.json").write_text(json.dumps(description))
    assert_one_sentence(isotune("runs", "list", "study"), "format 99")


def test_a_run_that_does_not_exist(isotune, trained):
    assert_one_sentence(isotune("runs", "show", "study", "zzz"), "zzz", "isotune runs list")


@pytest.mark.parametrize("kilobytes", [4, 20, 40])
def test_a_full_disk_loses_nothing(isotune, tiny_recipe, trained, kilobytes):
    before = everything_in(trained)
    command = ("train", tiny_recipe, "--study", "study", "--tokens", "25600", "--quiet")
    assert_one_sentence(
        isotune(*command, largest_file_bytes=kilobytes * 1024), "disk is full", "repeat the same command"
    )
    assert all(path.read_bytes() == content for path, content in before.items())
    assert isotune(*command).returncode == 0


def test_a_folder_without_permission(isotune, tiny_recipe, tmp_path):
    (tmp_path / "file").write_text("")
    done = isotune("train", tiny_recipe, "--study", "file/study")
    assert_one_sentence(done, "file")


def test_an_unknown_option(isotune):
    assert_one_sentence(isotune("train", "nano-wsd", "--learning-rat", "3"), "No such option", "--learning-rat")


def test_an_unknown_command(isotune):
    assert_one_sentence(isotune("trian"), "trian")


def test_cuda_where_there_is_none(isotune, tiny_recipe):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert_one_sentence(isotune("train", tiny_recipe, "--device", "cuda"), "use cpu")


def test_no_command_at_all_gets_the_whole_help(isotune):
    for words in ((), ("runs",)):
        done = isotune(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("Usage: isotune") and "--help" in done.stderr
        assert "..." not in done.stderr.split("\n", 1)[1]
