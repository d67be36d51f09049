"""Profiles: the numbers, the page, and refused arguments."""

import json
import re

import models
import numpy as np
import pytest

import symshape

DIMS = {"N": (1, 64), "K": (1, 33)}


def data(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))


def test_profile_has_the_work_of_each_size():
    result = symshape.profile(models.product(), DIMS, at=[{"N": 4, "K": 3}, {"N": 64, "K": 33}])
    assert result.at == [{"N": 4, "K": 3}, {"N": 64, "K": 33}]
    assert all(ns > 0 for ns in result.call_ns)
    for at, kernels in zip(result.at, result.kernels):
        assert sum(kernel.multiplications for kernel in kernels) == at["N"] * at["K"] * 5
        assert all(kernel.ns > 0 and kernel.share > 0 and kernel.bytes > 0 for kernel in kernels)
    assert "N" in repr(result) and "us" in repr(result)


def test_page_is_shown_saved_and_compared(tmp_path):
    first = symshape.profile(models.product(), DIMS, at={"N": 4, "K": 3})
    first.save(tmp_path / "first.html")
    assert first._repr_html_().startswith("<iframe")
    second = symshape.profile(models.product(), DIMS, at={"N": 4, "K": 3}, baseline=tmp_path / "first.html")
    assert data(second.page)["profile"]["baseline"]["name"] == "first.html"
    with pytest.raises(symshape.FileError, match="no/page"):
        first.save(tmp_path / "no" / "page.html")


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ({"N": 65, "K": 3}, r"N = 65; N is declared 1\.\.=64"),
        ({"N": 4}, "K has no size"),
        ({"N": 4, "K": 3, "M": 1}, "no symbol M"),
        ({"N": -1, "K": 3}, "N: -1 is not a size"),
        ([], "at least one call"),
    ],
)
def test_wrong_sizes_are_refused(at, message):
    with pytest.raises(symshape.UsageError, match=message):
        symshape.profile(models.product(), DIMS, at=at)


def test_other_files_are_refused_as_baseline(tmp_path):
    (tmp_path / "other.html").write_text("no page")
    with pytest.raises(symshape.UsageError, match="not a report page"):
        symshape.profile(models.product(), DIMS, at={"N": 1, "K": 1}, baseline=tmp_path / "other.html")
    with pytest.raises(symshape.FileError, match="missing.html"):
        symshape.profile(models.product(), DIMS, at={"N": 1, "K": 1}, baseline=tmp_path / "missing.html")


def test_options_of_compile_are_taken():
    with pytest.raises(TypeError, match="progress"):
        symshape.profile(models.product(), DIMS, at={"N": 1, "K": 1}, progress=True)
    result = symshape.profile(models.product(), DIMS, at={"N": 1, "K": 1}, name="other")
    assert data(result.page)["name"] == "other"


def test_ragged_batches_are_measured_at_sizes_and_lengths(tmp_path):
    arguments = {"dims": {"N": (1, 5), "S": (1, 9)}, "ragged": "S"}
    lists = [[3, 9], [9, 1, 1, 1, 2]]
    result = symshape.profile(models.encoder(), **arguments, at={"N": 2, "T": 6}, lengths=lists)
    assert result.at == [{"N": 2, "T": 6}, *lists]
    work = [sum(kernel.multiplications for kernel in kernels) for kernels in result.kernels]
    assert all(kernel.ns > 0 and kernel.share > 0 for kernels in result.kernels for kernel in kernels)

    # The work of a batch is that of its sequences.
    lengths = sorted({length for sizes in lists for length in sizes} | {3})
    alone = symshape.profile(models.encoder(), **arguments, lengths=[[length] for length in lengths])
    of = {at[0]: sum(kernel.multiplications for kernel in kernels) for at, kernels in zip(alone.at, alone.kernels)}
    assert work == [sum(of[length] for length in sizes) for sizes in ([3, 3], *lists)]

    one = symshape.profile(models.encoder(), **arguments, lengths=np.array([3, 9], np.int32))
    assert one.at == [[3, 9]] and data(one.page)["profile"]["sizes"][0]["at"] == "N=2,T=12,S=3..9"


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([10], "S = 10"),
        ([2, 0], "S = 0"),
        ([1] * 6, r"N = 6; N is declared 1\.\.=5"),
        ([], "at least one call"),
        ([[]], "N = 0"),
        ([2, -1], r"lengths\[1\] = -1 is not a length"),
        ([2.5], "a list of integers"),
        ([[2], 3], "a list of integers"),
    ],
)
def test_wrong_lengths_are_refused(lengths, message):
    with pytest.raises(symshape.UsageError, match=message):
        symshape.profile(models.encoder(), {"N": (1, 5), "S": (1, 9)}, ragged="S", lengths=lengths)


def test_models_without_ragged_batches_take_no_lengths():
    with pytest.raises(symshape.UsageError, match="takes no ragged batch"):
        symshape.profile(models.product(), DIMS, lengths=[2])
