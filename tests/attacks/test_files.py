"""Data files with random damage: read, or refused in one line, and the same way however they are packed."""

import gzip

import pytest

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import conversion
from bert4rec_tf.foundation.errors import UserError

ROWS = [
    (f"u{user}", f"i{(7 * user + place) % 30}", 978_300_000 + 50 * place + user)
    for user in range(30)
    for place in range(6)
]
FILES = {
    "ratings.csv": "user,item,time\n" + "".join(f'{user},"{item}",{time}\n' for user, item, time in ROWS),
    "ratings.dat": "".join(f"{user}::{item}::5::{time}\n" for user, item, time in ROWS),
    "ratings.tsv": "user\titem\ttime\n" + "".join(f"{user}\t{item}\t{time}\n" for user, item, time in ROWS),
    "ratings.jsonl": "".join(f'{{"user": "{user}", "item": "{item}", "time": {time}}}\n' for user, item, time in ROWS),
}
PIECES = [
    b'"',
    b"\n",
    b"\r",
    b"\r\n",
    b",",
    b"::",
    b"\t",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"T" * 3_000,
    b"9" * 3_000,
    b"{",
    b"}\n{",
]
PIECES += [b"1e999", b"-1", b"2020-13-45T99:99", "é".encode("utf-16"), b" ", b"\\", b"null", b"\xed\xa0\x80"]


def damaged(noise, content):
    """Cuts, repeats, exchanges and adds pieces at random places."""
    content = bytearray(content)
    for _ in range(noise.randint(1, 6)):
        place, width = noise.randrange(len(content) + 1), noise.choice([0, 1, 2, 40, 4_000])
        new = noise.choice([noise.choice(PIECES), noise.randbytes(noise.randint(1, 6)), bytes(content[:width]), b""])
        content[place : place + width] = new
    return bytes(content)


def read(path, bad_rows):
    try:
        columns = "user,item,_,time" if ".dat" in path.name else None
        sequences, _ = conversion.convert(Interactions(str(path), bad_rows=bad_rows, columns=columns))
        return sequences.fingerprint
    except UserError as error:
        assert "\n" not in str(error)
        return str(error).replace(str(path), "FILE").replace("FILE.gz", "FILE")


@pytest.mark.slow
def test_damaged_data_files_are_read_or_refused(attack, tmp_path):
    for noise in attack.trials():
        name = noise.choice(sorted(FILES))
        content = damaged(noise, FILES[name].encode())
        plain, packed = tmp_path / name, tmp_path / f"{name}.gz"
        plain.write_bytes(content)
        packed.write_bytes(gzip.compress(content, 1))
        bad_rows = noise.choice(["refuse", "skip"])
        found = read(plain, bad_rows)
        assert read(packed, bad_rows) == found, content
        attack.outcomes["read" if len(found) == 64 else "one line"] += 1
