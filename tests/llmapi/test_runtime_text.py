"""Text of the LLM API's answers: made of its token ids, in pieces as in one go, on the double of tests/standins."""

from __future__ import annotations

import functools
import json
import random
import sys
import threading
from types import SimpleNamespace

import pytest

from tests.conftest import ROOT
from tests.reference.tokenizers_for_tests import CALL, SPECIAL, random_text, tokenizer

FAMILIES = (
    "byte-level BPE", "byte-level BPE, split (Llama 3)", "byte fallback BPE (Llama 2)",
    "byte fallback Unigram (Gemma)", "Metaspace Unigram, always", "WordPiece, cleanup",
)  # fmt: skip
SCRIPTS = ("cjk", "emoji", "devanagari", "rtl")
END = SPECIAL.index("</s>")


def make_folder(family, folder):
    """A checkpoint folder with the tokenizer alone, that AutoTokenizer can open too."""
    tokenizer(family).save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": END}))
    return folder


class Served:
    """The runtime on a family's folder; `ids` is what every request is answered with."""

    def __init__(self, upstream, folder):
        from runtime_api import make_runtime

        self.answers, self.plain, self.calls = upstream.answers, upstream.TOKENIZER, []
        self.runtime = make_runtime("tensorrt_llm")
        self.runtime.start(str(folder), {"max_batch_size": 4})
        generate = self.runtime._llm.generate_async

        def recorded(inputs, params, **more):
            result = generate(inputs, params, **more)
            self.calls.append(SimpleNamespace(inputs=inputs, given=params.given, result=result))
            return result

        self.runtime._llm.generate_async = recorded

    def ask(self, ids, step=1, merge=False, **fields):
        """Chunks of each sequence of an answer."""
        from runtime_api import Request

        self.answers.IDS, self.answers.STEP, self.runtime.merge_events = ids, step, merge
        request = Request(**{"prompt": "x", "max_tokens": len(ids), **fields})
        got, done = [], threading.Event()

        def on_chunk(chunk):
            got.append(chunk)
            if sum(c.final for c in got) == request.n or chunk.finish_reason == "error":
                done.set()

        self.runtime.submit(request, on_chunk)
        assert done.wait(10)
        assert got[-1].finish_reason != "error", got[-1]
        return [[c for c in got if c.index == place] for place in range(request.n)]

    def text(self, ids, **fields):
        (chunks,) = self.ask(ids, **fields)
        return "".join(chunk.text for chunk in chunks)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return functools.cache(lambda family: make_folder(family, tmp_path_factory.mktemp("model")))


@pytest.fixture
def serve(monkeypatch, folders):
    """serve(family) -> Served, with the double doing upstream's text work beside it."""
    monkeypatch.syspath_prepend(str(ROOT / "tests/standins"))
    for name in [n for n in sys.modules if n.split(".")[0] == "tensorrt_llm"]:
        monkeypatch.delitem(sys.modules, name)
    import tensorrt_llm

    made = []

    def start(family="byte-level BPE", text_work=True):
        folder = folders(family)
        monkeypatch.setattr(tensorrt_llm.answers, "TOKENIZER", str(folder) if text_work else None)
        tensorrt_llm.TOKENIZER = tokenizer(family)
        made.append(Served(tensorrt_llm, folder))
        return made[-1]

    yield start
    for one in made:
        one.runtime.stop()
    for name in [n for n in sys.modules if n.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@pytest.mark.parametrize("family", FAMILIES)
def test_in_pieces_as_in_one_go_as_the_tokenizer_says(serve, family):
    """Also where the answer ends in the middle of a character."""
    served, source = serve(family), random.Random(11)
    unfinished = 0
    for k in range(24):
        text = random_text(SCRIPTS[k % 4], source) + "葛👩‍👩‍👧‍👦é"
        ids = [i for i in served.plain.encode(text, add_special_tokens=False).ids if i != END]
        for cut in range(min(3, len(ids))):
            part = ids[: len(ids) - cut]
            want = served.plain.decode(part)
            unfinished += want.endswith("\ufffd")
            assert served.text(part) == want
            for step in (1, 3, len(part)):
                for merge in (False, True):
                    got = served.text(part, step=step, merge=merge, streaming=True)
                    assert got == want, (family, text, cut, step, merge)
    if "byte" in family:
        assert unfinished


def test_upstreams_own_stream_loses_an_unfinished_character(serve):
    """Why this is done here."""
    served = serve()
    ids = served.plain.encode("a 🐱", add_special_tokens=False).ids[:-1]
    converter = served.runtime._convert
    converter._codec = served.runtime._codec = None
    converter._encodes = False
    assert served.text(ids, streaming=True) == "a "
    assert served.plain.decode(ids).startswith("a \ufffd")


def test_the_prompt_goes_as_ids_and_no_text_is_asked_for(serve):
    served = serve()
    served.text([50], prompt="the <|im_end|>")
    call = served.calls[-1]
    assert call.inputs == served.plain.encode("the <|im_end|>").ids
    assert call.given == {"max_tokens": 1, "end_id": END, "detokenize": False}
    served.text([50], prompt=None, prompt_ids=[7, 8])
    assert served.calls[-1].inputs == [7, 8]


def test_a_model_that_reads_images_gets_the_text(serve):
    served = serve()

    class PictureProcessor:
        pass

    class Llm(SimpleNamespace):
        pass

    from trtllm_request import Converter

    module = SimpleNamespace(SamplingParams=lambda **given: given)
    llm = Llm(input_processor=PictureProcessor(), generate_async=lambda: None)
    converter = Converter(llm, module, [END], "<s>", {}, served.runtime._codec)
    request = SimpleNamespace(prompt_ids=None, media=[], prompt="a", add_special_tokens=True)
    assert converter.prompt_ids(request) is None
    ids = served.plain.encode("a").ids
    assert served.runtime._convert.prompt_ids(request) == ids
    request.media = ["a picture"]
    assert served.runtime._convert.prompt_ids(request) is None


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("step", [1, 3, 99])
def test_a_stop_word_ends_the_text_however_it_is_spelled(serve, streaming, step):
    """WEEKEND has the word's letters in other tokens than the word alone; a long answer is ended."""
    served = serve()
    text = "go WEEKEND now and on"
    ids = served.plain.encode(text, add_special_tokens=False).ids
    (chunks,) = served.ask(ids, step=step, stop=["END", "on"], streaming=streaming)
    assert "".join(c.text for c in chunks) == "go WEEK"
    last = chunks[-1]
    assert (last.finish_reason, last.stop_reason) == ("stop", "END")
    result = served.calls[-1].result
    assert result.finished or result.aborted()
    if step == 1:
        assert sum(len(c.token_ids) for c in chunks) < len(ids)
    (chunks,) = served.ask(ids, step=step, stop=["ENDING", "ones"], streaming=streaming)
    assert "".join(c.text for c in chunks) == text  # a beginning at the end is text
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("length", None)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_stop_word_that_is_a_special_token(serve, streaming):
    """It shows in no text; the ids end it."""
    served = serve()
    mark = served.plain.token_to_id("<|im_end|>")
    ids = [*served.plain.encode("the 葛 <", add_special_tokens=False).ids, mark, mark, mark]
    (chunks,) = served.ask(ids, stop=["<|im_end|>"], streaming=streaming)
    assert "".join(c.text for c in chunks) == "the 葛 <"
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", "<|im_end|>")


@pytest.mark.parametrize("streaming", [True, False])
def test_end_ids_are_no_text_though_they_are_no_special_tokens(serve, streaming):
    served = serve()
    call = served.plain.token_to_id(CALL)
    ids = [*served.plain.encode("the end", add_special_tokens=False).ids, call, 9, 9]
    for fields in (
        {"end_ids": [call]},
        {"end_ids": [END, call]},
        {"stop_token_sequences": [[call]]},
    ):
        (chunks,) = served.ask(ids, streaming=streaming, **fields)
        assert "".join(c.text for c in chunks) == "the end"
        assert sum(len(c.token_ids) for c in chunks) == len(ids) - 3
        assert chunks[-1].finish_reason == "stop"
    assert served.text(ids, streaming=streaming, end_ids=[]) == served.plain.decode(ids)


@pytest.mark.parametrize("merge", [True, False])
def test_each_of_several_sequences_has_its_own_pieces(serve, merge):
    served = serve()
    ids = served.plain.encode("葛 the 👩‍👩‍👧‍👦 é", add_special_tokens=False).ids
    sequences = served.ask(ids, merge=merge, streaming=True, n=2)
    wholes = served.ask(ids, n=2)
    for place, (pieces, whole) in enumerate(zip(sequences, wholes, strict=True)):
        want = served.plain.decode([*ids[place:], *ids[:place]])
        assert "".join(c.text for c in pieces) == want
        assert [c.text for c in whole] == [want]


def test_beams_are_decoded_whole(serve):
    served = serve()
    ids = served.plain.encode("the 葛", add_special_tokens=False).ids[:-1]
    ((chunk,),) = served.ask(ids, beam_width=2, stop=["h"])
    assert (chunk.text, chunk.stop_reason) == ("t", "h")
    ((chunk,),) = served.ask(ids, beam_width=2)
    assert chunk.text == served.plain.decode(ids)


def test_words_as_text_go_beside_no_end_id(serve):
    """Upstream tokenizes them only where it chooses the end id, and fails otherwise."""
    served = serve()
    served.text([50], stop=["x"], bad=["y"])
    assert served.calls[-1].given == {
        "max_tokens": 1, "stop_token_ids": [END], "stop": ["x"], "bad": ["y"],
        "include_stop_str_in_output": True, "detokenize": False,
    }  # fmt: skip
    served.text([50], stop=["x"], end_ids=[60, END])
    assert served.calls[-1].given["stop_token_ids"] == [60, END]
    assert "end_id" not in served.calls[-1].given
    # With other end ids only, or none, it is told an end id, and the text alone decides.
    served.text([50], stop=["x"], end_ids=[60])
    assert served.calls[-1].given == {"max_tokens": 1, "end_id": 60, "detokenize": False}
    served.text([50], stop=["x"], bad=["y"], end_ids=[])
    assert served.calls[-1].given == {
        "max_tokens": 1, "ignore_eos": True, "bad": ["y"], "detokenize": False,
    }  # fmt: skip
    with pytest.raises(AssertionError, match="bad: the LLM API takes such words only"):
        served.text([50], bad=["y"], end_ids=[60])


def test_a_folder_without_a_tokenizer_leaves_the_text_to_upstream(serve, tmp_path, capfd):
    served = serve(text_work=False)
    served.runtime._llm.shutdown()
    from runtime_api import make_runtime

    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 5}')
    runtime, first = make_runtime("tensorrt_llm"), served.runtime
    runtime.start(str(tmp_path), {})
    assert "the LLM API does the text" in capfd.readouterr().err
    try:
        served.runtime = runtime
        assert runtime._codec is None
        assert served.text([50, 60], prompt="a b") == "a b "
        assert served.text([50, 60, 70], prompt="a b", streaming=True, stop=["b"]) == "a "
    finally:
        served.runtime = first
        runtime.stop()
