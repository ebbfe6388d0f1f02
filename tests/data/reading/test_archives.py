"""Archives: what is read from them, and which ones nobody should unpack."""

import zipfile

import pytest

from bert4rec_tf.data.reading import archives
from bert4rec_tf.foundation.errors import UserError


def archive(folder, members, packing=zipfile.ZIP_DEFLATED):
    path = folder / "data.zip"
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def refusal(path, member="ratings.dat"):
    with pytest.raises(UserError) as refused, archives.open_unpacked(path, member) as file:
        file.read()
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)
    return str(refused.value)


def test_a_member_is_read_wherever_it_lies(tmp_path):
    path = archive(tmp_path, {"ml-1m/README": b"read me", "ml-1m/ratings.dat": b"1::2::3::4\n"})
    with archives.open_unpacked(path, "ratings.dat") as file:
        assert file.read() == b"1::2::3::4\n"


def test_a_bomb_is_not_unpacked(tmp_path):
    path = archive(tmp_path, {"ratings.dat": b"0" * 10_000_000})
    assert path.stat().st_size < 50_000
    assert "would unpack from" in refusal(path)


def test_a_member_beyond_the_limit_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LIMIT", 999)
    path = archive(tmp_path, {"ratings.dat": b"x" * 1_000}, zipfile.ZIP_STORED)
    assert "1,000 bytes (at most 999" in refusal(path)


def test_an_archive_that_lies_about_its_size_is_damaged(tmp_path):
    path = archive(tmp_path, {"ratings.dat": b"x" * 5_000 + bytes(range(256)) * 20})
    content = path.read_bytes()
    size = (5_000 + 256 * 20).to_bytes(4, "little")
    path.write_bytes(content.replace(size, (100).to_bytes(4, "little")))
    assert "damaged" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04" + b"\0" * 50])
def test_an_invalid_archive_is_an_error(tmp_path, content):
    path = tmp_path / "data.zip"
    path.write_bytes(content)
    assert "damaged" in refusal(path)


def test_a_missing_or_duplicate_member_is_an_error(tmp_path):
    assert "expected one member 'ratings.dat', found 0" in refusal(archive(tmp_path, {"movies.dat": b"x"}))
    assert "found 2" in refusal(archive(tmp_path, {"a/ratings.dat": b"x", "b/ratings.dat": b"x"}))
