"""An encoder by a card alone, as docs/add-an-encoder.md says: added, its weights found, its contract held."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import timm
import yaml
from huggingface_hub import constants
from safetensors.torch import save_file

import crsbench_assets
from crsbench_assets.config.registry import catalog_ids
from crsbench_assets.operations.doctor import examine
from crsbench_assets.storage.layout import HomeLayout

ROOT = Path(crsbench_assets.__file__).parents[1]
PAGE = ROOT / "docs" / "add-an-encoder.md"


@pytest.fixture
def run(crsbench, monkeypatch, tmp_path):
    """Run a command of ours with an empty cache of the hub, offline, and with nobody logged in."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.file_download.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    return crsbench


def states(run, home: HomeLayout):
    code, out, _ = run("weights", "status", "--format", "json", "--home", str(home.root))
    assert code == 0
    return {row["encoder_id"]: row for row in json.loads(out)}


def blocks(language, page=PAGE):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def test_the_five_lines_of_the_readme(run, tmp_path):
    cards = {block.splitlines()[0].removeprefix("# "): block for block in blocks("yaml", ROOT / "README.md")}
    lines = cards["my_home/encoders/my_encoder.yaml"].splitlines()[1:]
    assert len(lines) == 5
    assert run("init", "--home", "my_home")[0] == 0
    subprocess.run([sys.executable, ROOT / "docs" / "example_cohort.py", "my_home"], cwd=tmp_path, check=True)
    for name, block in cards.items():
        (tmp_path / name).write_text(block)
    code, out, err = run("encoders", "check", "my_encoder", "--home", "my_home")
    assert (code, err) == (0, "") and "my-cohort: ok, 1,140 vectors under 16 of 16 conditions" in " ".join(out.split())
    _, out, _ = run("plan", "--format", "json", "--home", "my_home")
    assert "my_encoder" in out


def test_a_card_and_nothing_else(run, tiny_home, tmp_path):
    (text,) = blocks("yaml")
    (tmp_path / "vit_tiny.yaml").write_text(text)
    commands = [line.partition("#")[0].split() for line in blocks("sh")[0].splitlines()]
    assert [words[:3] for words in commands] == [
        ["crsbench", "encoders", "add"],
        ["crsbench", "weights", "status"],
        ["crsbench", "encoders", "check"],
    ]
    add, status, check = ([*words[1:-1], str(tiny_home.root)] for words in commands)
    assert run(*add)[0] == 0
    code, out, _ = run(*status)
    assert code == 0 and "vit_tiny" in out
    row = states(run, tiny_home)["vit_tiny"]
    assert (row["state"], row["expected"]) == ("missing", "timm/vit_tiny_patch16_224.augreg_in21k")
    code, _, err = run(*check)
    assert code == 1 and "the hub cannot be reached" in err and err.count("\n") == 1

    folder = tiny_home.root / "weights" / "vit_tiny"
    folder.mkdir(parents=True)
    name = yaml.safe_load(text)["weights"]["hub_id"].removeprefix("timm/")
    save_file(timm.create_model(name, pretrained=False).state_dict(), folder / "model.safetensors")
    assert states(run, tiny_home)["vit_tiny"]["found"] == str(folder / "model.safetensors")
    for golden in ("recorded in", "cosine with the recorded vector 1.000000"):
        code, out, _ = run(*check)
        assert code == 0, out
        assert golden in " ".join(out.split())
    assert {f.check: f.verdict for f in examine(tiny_home)}["weights of vit_tiny"] == "ok"


def test_what_a_home_names_and_every_state(run, tiny_home, tmp_path):
    named = tmp_path / "mounted" / "panderm.pth"
    named.parent.mkdir()
    named.write_bytes(b"weights")
    text = re.sub(r"^weights:.*\n", "", tiny_home.settings.read_text(), flags=re.MULTILINE)
    tiny_home.settings.write_text(f"{text}weights: {{panderm: {named}, rad_dino: {tmp_path}/unmounted}}\n")
    by_hand = tiny_home.root / "weights" / "chexzero"
    by_hand.mkdir(parents=True)
    (by_hand / "best_64_5e-05_original_22000_0.864.pt").write_bytes(b"other weights")
    found = states(run, tiny_home)
    assert set(found) == set(catalog_ids("encoders"))
    expected = {"panderm": "present", "rad_dino": "missing", "chexzero": "corrupt", "medgemma": "gated"}
    expected |= {"resnet50": "missing", "retfound": "gated"}
    assert {name: found[name]["state"] for name in expected} == expected
    assert all(row["remedy"] and "\n" not in row["remedy"] for row in found.values() if row["state"] != "present")
    assert found["resnet50"]["remedy"].startswith(
        "`crsbench encoders add resnet50`; `crsbench encoders check resnet50`"
    )
    assert found["panderm"]["found"] == str(named)
    assert run("encoders", "add", "medgemma", "--home", str(tiny_home.root))[0] == 0
    assert states(run, tiny_home)["medgemma"]["remedy"].startswith("accept the terms at https://huggingface.co/")
    verdict = {f.check: (f.verdict, f.remedy) for f in examine(tiny_home)}["weights of medgemma"]
    assert verdict[0] == "blocker" and "https://huggingface.co/google/medgemma-4b-it" in verdict[1]


SECRET = "hf_aSecretThatNobodyMayReadAnywhere"


@pytest.mark.parametrize("is_offline", [True, False])
def test_a_token_is_never_printed(run, tiny_home, monkeypatch, is_offline):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)

    def refuse(*arguments, **options):
        raise OSError(f"https://huggingface.co/x?signature={SECRET}")

    if not is_offline:
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    said = []
    for words in (
        ("encoders", "add", "medsiglip"), ("weights", "status"), ("weights", "status", "--format", "json"),
        ("encoders", "show", "medsiglip"), ("encoders", "check", "medsiglip"), ("doctor",), ("plan",),
    ):  # fmt: skip
        said += run(*words, "--home", str(tiny_home.root))[1:]
    assert any("medsiglip" in text for text in said)
    assert SECRET not in "".join(said)
    kept = [path.read_bytes() for path in tiny_home.root.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in content for content in kept)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("mine", {"kind": "tensorflow"}, "kind"),
        ("mine", {"embedding": {"pooling": "median", "dim": 192, "n_blocks": 12}}, "embedding.pooling"),
        (
            "mine",
            {"embedding": {"pooling": "cls", "dim": 192, "n_blocks": 12, "depth_taps": [9, 6, 3, 1]}},
            "depth_taps",
        ),
        ("mine", {"weights": {"loader": "timm", "hub": "vit"}}, "weights.hub"),
        ("mine", {"preprocessing": None, "weights": {}}, "weights.loader"),
        ("mine", {"id": "another"}, "a card's file is named after its id"),
        ("resnet50", {"id": "resnet50"}, "reuses the id 'resnet50' of a catalogue card"),
    ],
)
def test_a_card_that_cannot_be_meant(run, tiny_home, name, change, said):
    card = yaml.safe_load(blocks("yaml")[0]) | {"id": "mine"} | change
    (tiny_home.root / "encoders" / f"{name}.yaml").write_text(yaml.safe_dump(card))
    code, out, err = run("encoders", "check", name, "--home", str(tiny_home.root))
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert said in err and f"{name}.yaml" in err


def test_two_files_of_one_id_and_a_card_added_twice(run, tiny_home, tmp_path):
    (tmp_path / "mine.yaml").write_text(blocks("yaml")[0].replace("id: vit_tiny", "id: mine"))
    add = ("encoders", "add", "mine.yaml", "--home", str(tiny_home.root))
    assert run(*add)[0] == 0
    other = (tmp_path / "mine.yaml").read_text().replace("pooling: cls", "pooling: mean_patches")
    (tmp_path / "mine.yaml").write_text(other)
    code, _, err = run(*add)
    assert code == 1 and err.count("\n") == 1 and "mine" in err
    assert "pooling: cls" in (tiny_home.root / "encoders" / "mine.yaml").read_text()


def test_weights_of_a_class_are_its_own_and_a_missing_library_is_no_traceback(run, tiny_home, monkeypatch):
    card = yaml.safe_load(blocks("yaml")[0]) | {"id": "theirs", "kind": "module", "weights": {"loader": "theirs:X"}}
    (tiny_home.root / "encoders" / "theirs.yaml").write_text(yaml.safe_dump(card))
    assert "theirs" not in states(run, tiny_home)
    assert run("encoders", "add", "medgemma", "--home", str(tiny_home.root))[0] == 0
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    found = {finding.check: finding for finding in examine(tiny_home)}
    assert "weights of theirs" not in found and found["weights of medgemma"].verdict == "blocker"
    assert "medgemma" in found["hub token"].found
    code, _, err = run("encoders", "check", "medgemma", "--home", str(tiny_home.root))
    assert code == 1 and "needs the package huggingface_hub, which is not installed" in err
