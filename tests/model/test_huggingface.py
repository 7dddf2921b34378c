"""The oracle is transformers' own LlamaForCausalLM, loaded from what we export and saved for what we import."""

import json
import shutil

import pytest
import torch
from model_examples import SEQUENCE_LENGTH, SHAPES, make_model, make_windows
from safetensors.torch import load_file, save_file

from isotune.errors import InputError
from isotune.model import Transformer, export_llama, from_state, import_llama, llama_state_dict
from isotune.model.huggingface import as_llama
from isotune.recipe import PRESETS, Init, ModelShape

ODD = SHAPES["odd sizes"]


@pytest.fixture
def llama():
    """transformers' class; a test that uses it is skipped where transformers is not installed."""
    return pytest.importorskip("transformers").LlamaForCausalLM


@pytest.fixture
def exported(tmp_path):
    """A folder with an exported model of odd sizes, for tests to spoil."""
    export_llama(make_model(ODD), tmp_path / "model")
    return tmp_path / "model"


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in (config | changes).items() if v != "absent"}))


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def assert_equal_models(first, second):
    assert first.shape == second.shape
    for (name, a), b in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b), name


# Against transformers


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_logits_and_gradients_equal_those_of_transformers(llama, shape, model, tmp_path, attention):
    export_llama(model, tmp_path / "model")
    reference, problems = llama.from_pretrained(
        tmp_path / "model", output_loading_info=True, attn_implementation=attention
    )
    assert not any(problems.values())
    windows = make_windows(shape)

    logits, reference_logits = model(windows[:, :-1]), reference(windows[:, :-1]).logits
    torch.testing.assert_close(logits, reference_logits, rtol=1e-5, atol=1e-5)

    model.sequence_losses(windows).mean().backward()
    torch.nn.functional.cross_entropy(reference_logits.flatten(0, 1), windows[:, 1:].flatten()).backward()
    ours, theirs = as_llama(gradients(model)), gradients(reference)
    assert set(ours) == set(theirs)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-5, msg=name)


def test_transformers_own_loss_is_ours(llama, shape, model, tmp_path):
    export_llama(model, tmp_path / "model")
    windows = make_windows(shape)
    theirs = llama.from_pretrained(tmp_path / "model")(windows, labels=windows).loss
    torch.testing.assert_close(model.sequence_losses(windows[:, :25]).mean(), theirs, rtol=1e-5, atol=1e-5)


def test_what_transformers_saves_is_imported_bit_for_bit(llama, shape, model, tmp_path):
    export_llama(model, tmp_path / "ours")
    llama.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    assert_equal_models(import_llama(tmp_path / "theirs", SEQUENCE_LENGTH), model)


def test_what_transformers_saves_in_shards_is_imported_bit_for_bit(llama, tmp_path):
    model = make_model(PRESETS["nano"])
    export_llama(model, tmp_path / "ours")
    llama.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs", max_shard_size="100KB")
    assert len(list((tmp_path / "theirs").glob("model-*-of-*.safetensors"))) > 1
    assert_equal_models(import_llama(tmp_path / "theirs", SEQUENCE_LENGTH), model)


def test_a_model_made_by_transformers_is_imported_with_the_same_logits(llama, tmp_path):
    config = llama.config_class(
        vocab_size=50, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=3
    )
    reference = llama(config)
    reference.save_pretrained(tmp_path / "theirs")
    model = import_llama(tmp_path / "theirs", 16)
    assert model.shape.norm_epsilon == 1e-6
    tokens = make_windows(model.shape, length=16)
    torch.testing.assert_close(model(tokens), reference(tokens).logits, rtol=1e-5, atol=1e-5)


def test_the_exported_config_says_what_transformers_reads(llama, exported):
    config = llama.from_pretrained(exported).config
    assert config.rope_parameters["rope_theta"] == ODD.rope_base
    assert (config.num_key_value_heads, config.head_dim, config.rms_norm_eps) == (5, 6, ODD.norm_epsilon)
    assert config.max_position_embeddings == SEQUENCE_LENGTH
    assert (config.bos_token_id, config.eos_token_id, config.tie_word_embeddings) == (None, None, False)


# Round trips


def test_export_and_import_return_the_model(shape, model, tmp_path):
    export_llama(model, tmp_path / "new" / "model")
    assert_equal_models(import_llama(tmp_path / "new" / "model", SEQUENCE_LENGTH), model)


def test_an_imported_model_runs_at_another_length(exported):
    model = import_llama(exported, 3 * SEQUENCE_LENGTH)
    tokens = make_windows(ODD, length=3 * SEQUENCE_LENGTH)
    short = make_model(ODD)(tokens[:, :SEQUENCE_LENGTH])
    torch.testing.assert_close(model(tokens)[:, :SEQUENCE_LENGTH], short, rtol=1e-5, atol=1e-5)


def test_state_dict_has_a_view_for_each_of_llamas_tensors():
    model = make_model(ODD)
    tensors = llama_state_dict(model)
    assert len(tensors) == 3 + 9 * ODD.num_layers
    assert sum(tensor.numel() for tensor in tensors.values()) == ODD.num_parameters
    rows = model.blocks[1].query_key_value.weight[ODD.width : 2 * ODD.width]
    assert torch.equal(tensors["model.layers.1.self_attn.k_proj.weight"], rows)
    assert tensors["model.layers.1.self_attn.k_proj.weight"].data_ptr() == rows.data_ptr()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_floating_types_are_imported_as_float32(exported, dtype):
    change_tensors(exported, lambda tensors: tensors.update({k: v.to(dtype) for k, v in tensors.items()}))
    model = import_llama(exported, 8)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    torch.testing.assert_close(model.head.weight, make_model(ODD).head.weight, rtol=0.01, atol=0.001)


def test_a_bfloat16_model_is_exported_as_such(llama, tmp_path):
    export_llama(make_model(ODD).bfloat16(), tmp_path / "model")
    assert llama.from_pretrained(tmp_path / "model").dtype == torch.bfloat16


def test_frequencies_stored_by_early_transformers_are_passed_over(exported):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_tensors(exported, lambda tensors: tensors.update({name: torch.ones(3)}))
    assert_equal_models(import_llama(exported, SEQUENCE_LENGTH), make_model(ODD))


def test_a_config_of_transformers_4_is_understood(exported):
    change_config(exported, rope_parameters="absent", rope_theta=777.0, num_key_value_heads="absent", head_dim="absent")
    assert import_llama(exported, 8).shape.rope_base == 777.0


def test_a_config_of_transformers_5_is_understood(exported):
    change_config(exported, rope_theta="absent", rope_parameters={"rope_type": "default", "rope_theta": 777.0})
    assert import_llama(exported, 8).shape.rope_base == 777.0


def test_an_interrupted_export_is_no_model_and_can_be_repeated(exported):
    (exported / "config.json").unlink()
    with pytest.raises(InputError, match="does not exist"):
        import_llama(exported, 8)
    export_llama(make_model(ODD), exported)
    assert_equal_models(import_llama(exported, SEQUENCE_LENGTH), make_model(ODD))


def test_equal_models_are_exported_as_equal_bytes(exported, tmp_path):
    export_llama(make_model(ODD), tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (exported / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


# Refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mistral"}, "model_type='mistral'"),
        ({"model_type": "absent"}, "model_type=None"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForCausalLM only"),
        ({"num_key_value_heads": 1}, "grouped-query"),
        ({"head_dim": 32}, "head_dim=32"),
        ({"tie_word_embeddings": True}, "untied"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling of type 'linear'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling of type 'llama3'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters of type 'yarn'"),
        ({"rope_scaling": "linear"}, "is no table"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"hidden_size": "absent"}, "lacks hidden_size"),
        ({"hidden_size": "wide"}, "must be a whole number"),
        ({"num_attention_heads": 4, "num_key_value_heads": 4}, "not a multiple"),
        ({"rms_norm_eps": -1}, "must be a positive number"),
        ({"rope_theta": None, "rope_parameters": None}, "must be a positive number"),
        ({"num_hidden_layers": 4}, "lack model.layers.3"),
        ({"num_hidden_layers": 2}, "have model.layers.2"),
        ({"vocab_size": 102}, r"has shape \(101, 30\) where \(102, 30\) belongs"),
    ],
)
def test_configs_that_our_decoder_cannot_follow_are_refused_in_words(exported, changes, words):
    change_config(exported, **changes)
    with pytest.raises(InputError, match=words) as raised:
        import_llama(exported, 8)
    assert str(exported) in str(raised.value)
    assert ": " in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("lm_head.weight"), "lack lm_head.weight: "),
        (lambda t: t.pop("model.layers.0.mlp.up_proj.weight"), "lack model.layers.0.mlp.up_proj.weight"),
        (lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(30)}), "q_proj.bias"),
        (lambda t: t.update({"model.norm.weight": torch.ones(31)}), r"shape \(31,\) where \(30,\) belongs"),
        (lambda t: t.update({"model.norm.weight": torch.ones(1, 30)}), r"shape \(1, 30\)"),
        (lambda t: t.update({"model.norm.weight": torch.ones(30, dtype=torch.int8)}), "torch.int8"),
    ],
)
def test_missing_and_odd_tensors_are_refused_in_words(exported, change, words):
    change_tensors(exported, change)
    with pytest.raises(InputError, match=words):
        import_llama(exported, 8)


@pytest.mark.parametrize("kept", [0, 4, 200, -1])
def test_a_truncated_file_is_refused(exported, kept):
    whole = (exported / "model.safetensors").read_bytes()
    (exported / "model.safetensors").write_bytes(whole[:kept])
    with pytest.raises(InputError, match="cannot be read") as raised:
        import_llama(exported, 8)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"])
def test_a_damaged_config_is_refused(exported, text):
    (exported / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="save the model again"):
        import_llama(exported, 8)


def test_a_folder_without_model_or_without_safetensors_is_refused(exported, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        import_llama(tmp_path / "nowhere", 8)
    with pytest.raises(InputError, match="does not exist"):
        import_llama(exported / "config.json", 8)
    (exported / "model.safetensors").rename(exported / "pytorch_model.bin")
    with pytest.raises(InputError, match="safetensors format"):
        import_llama(exported, 8)


def test_an_impossible_length_is_refused(exported):
    with pytest.raises(InputError, match="sequence_length=0"):
        import_llama(exported, 0)


@pytest.fixture
def sharded(exported):
    tensors = load_file(exported / "model.safetensors")
    (exported / "model.safetensors").unlink()
    names = sorted(tensors)
    files = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    places = {name: files[index % 2] for index, name in enumerate(names)}
    for file in files:
        save_file({name: tensors[name] for name in names if places[name] == file}, exported / file)
    (exported / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return exported


def change_places(folder, change):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps({"weight_map": change(index["weight_map"])}))


def test_shards_are_imported(sharded):
    assert_equal_models(import_llama(sharded, SEQUENCE_LENGTH), make_model(ODD))


def test_a_missing_shard_is_refused(sharded):
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"00002\.safetensors does not exist"):
        import_llama(sharded, 8)


def test_a_shard_without_the_promised_tensor_is_refused(sharded):
    change_places(sharded, lambda places: dict.fromkeys(places, "model-00001-of-00002.safetensors"))
    with pytest.raises(InputError, match=r"index\.json promises"):
        import_llama(sharded, 8)


@pytest.mark.parametrize("file", ["../elsewhere.safetensors", "/etc/passwd", 3, None, ""])
def test_an_index_that_leads_out_of_the_folder_is_refused(sharded, file):
    change_places(sharded, lambda places: places | {"lm_head.weight": file})
    with pytest.raises(InputError, match="files beside it"):
        import_llama(sharded, 8)


def test_an_export_replaces_no_other_model(exported):
    with pytest.raises(InputError, match="already holds a model"):
        export_llama(make_model(ODD, seed=5), exported)
    assert_equal_models(import_llama(exported, SEQUENCE_LENGTH), make_model(ODD))


def test_an_export_into_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match="is not a folder"):
            export_llama(make_model(ODD), path)


# States of a study


@pytest.fixture
def state(tmp_path):
    tensors = {}
    for name, parameter in make_model(ODD).named_parameters():
        tensors[f"parameter.{name}"] = parameter.detach()
        tensors[f"exp_avg.{name}"] = tensors[f"exp_avg_sq.{name}"] = torch.zeros_like(parameter)
    path = tmp_path / "0a1b.safetensors"
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path, metadata={"isotune": "{}"})
    return path


def test_the_parameters_of_a_state_are_loaded(state):
    assert_equal_models(from_state(state, ODD, SEQUENCE_LENGTH), make_model(ODD))


def test_what_a_trainer_saves_is_loaded(tmp_path):
    from isotune.recipe import Setup
    from isotune.train.execution import Execution, World
    from isotune.train.trainer import Trainer

    trainer = Trainer(Setup(model=ODD, sequence_length=8), Execution(), World())
    trainer.start(seed=3)
    trainer.save(tmp_path / "state.safetensors", 0, 0)
    expected = Transformer(ODD, 8)
    expected.initialize(Init(), 3)
    assert_equal_models(from_state(tmp_path / "state.safetensors", ODD, 8), expected)


def test_a_state_of_another_shape_is_refused(state):
    fields = {field: getattr(ODD, field) for field in ODD.__dataclass_fields__}
    for changes, words in [
        ({"num_layers": 2}, "differ in parameter.blocks.2"),
        ({"num_layers": 4}, "differ in parameter.blocks.3"),
        ({"vocabulary_size": 99}, r"shape \(101, 30\) where \(99, 30\)"),
    ]:
        with pytest.raises(InputError, match=words):
            from_state(state, ModelShape(**(fields | changes)), 8)


def test_what_is_no_state_is_refused(state, exported, tmp_path):
    with pytest.raises(InputError, match="is not a state"):
        from_state(exported / "model.safetensors", ODD, 8)
    with pytest.raises(InputError, match="does not exist"):
        from_state(tmp_path / "nowhere.safetensors", ODD, 8)
    shutil.copy(exported / "config.json", state)
    with pytest.raises(InputError, match="cannot be read"):
        from_state(state, ODD, 8)
