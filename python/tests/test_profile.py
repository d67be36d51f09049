"""Profiles: the numbers, the page, and refused arguments."""

import json
import re

import models
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
