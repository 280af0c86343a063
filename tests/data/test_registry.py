"""What is true of every corpus that is known by name, without downloading it."""

import re
import typing
from importlib import import_module

import pytest

from infolm.config import load_recipe, recipe_names
from infolm.data.registry import registry
from infolm.data.tokens import Kind

CORPORA = registry()


@pytest.fixture(params=list(CORPORA))
def info(request):
    return CORPORA[request.param]


def test_it_says_what_it_is(info):
    assert re.fullmatch(r"[a-z0-9-]+", info.name)
    assert info.title
    assert info.licence
    assert info.tokens in typing.get_args(Kind)
    assert info.types > 1


def test_its_text_is_made_here_or_found_in_files(info):
    if info.source.startswith("infolm."):
        import_module(info.source)
    else:
        assert info.source.startswith(("https://", "http://"))
    assert bool(info.folder) == bool(info.files)
    assert info.files or not info.downloads
    assert not any(name.startswith(("/", "..")) for name in info.files)


def test_downloads_are_checked_by_size_and_sha_256(info):
    for download in info.downloads:
        assert download.url.startswith(("https://", "http://"))
        assert re.fullmatch(r"[0-9a-f]{64}", download.sha256)
        assert len(set(download.sha256)) > 8  # no placeholder
        assert download.size > 0
        assert download.name


def test_splits_of_one_file_have_their_sizes(info):
    assert len(info.sizes) in (0, 3)
    assert all(size > 0 for size in info.sizes)


def test_names_are_unique_and_recipes_know_them():
    named = {load_recipe(name).data.corpus for name in recipe_names()} - {None}
    assert named <= set(CORPORA)
    assert len(CORPORA) == len({info.name for info in CORPORA.values()})
