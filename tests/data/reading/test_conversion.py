"""From a file to sequences: what is filtered out, what is kept, the raw sources of the data sets, and names."""

import gzip
import hashlib
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.interaction_files import (
    HEADER,
    as_csv,
    as_literals,
    as_parquet,
    as_text,
    histories,
    plainly,
    rated,
    read,
    refusal,
    write,
)

import bert4rec_tf as b4r
from bert4rec_tf.config import presets
from bert4rec_tf.config.data_names import Interactions, add_source, remove_source
from bert4rec_tf.data.reading import conversion
from bert4rec_tf.data.reading.columns import TEXT, Layout
from bert4rec_tf.data.reading.grouping import filter_actions, make_sequences
from bert4rec_tf.data.reading.rows import Rows
from bert4rec_tf.data.reading.times import Times
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.data.sources.download import Remote
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import DataWarning, FileWarning

ROWS = [(f"u{user}", f"i{(user + step) % 9}", 100 - step) for step in range(6) for user in range(12)]
ROWS += [("rare", "i1", 5), ("u1", "once", 1)]
LATER = [(user, item, time + 1_000) for user, item, time in ROWS]


@settings(deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=40),
    least=st.tuples(*[st.integers(1, 5)] * 2),
)
def test_the_filter_is_one_pass_and_then_the_users(pairs, least):
    users, items = (np.array(column, np.int32) for column in (zip(*pairs) if pairs else ([], [])))
    chosen = filter_actions(users, items, *least, k_core=False)
    once = [
        sum(u == user for u, _ in pairs) >= least[0] and sum(i == item for _, i in pairs) >= least[1]
        for user, item in pairs
    ]
    left = [user for (user, _), kept in zip(pairs, once) if kept]
    expected = [kept and left.count(user) >= least[0] for (user, _), kept in zip(pairs, once)]
    assert chosen.tolist() == expected


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3) | st.integers(-(2**62), 2**62)), max_size=40),
    kind=st.sampled_from(["int64", "float64", "none"]),
    grouped=st.booleans(),
)
def test_actions_are_ordered_by_user_time_and_row(rows, kind, grouped):
    if grouped:
        rows = sorted(rows, key=lambda row: row[0])
    columns = {"user": [str(user) for user, _ in rows], "item": [str(row) for row in range(len(rows))]}
    table = pa.table({role: pa.array(texts, pa.string()).dictionary_encode() for role, texts in columns.items()})
    if kind != "none":
        table = table.append_column("time", pa.array(np.array([time for _, time in rows], kind)))
    options = Interactions("x", duplicates="keep", future_times=True)
    reader = Rows("x", Times(), Layout(TEXT, "user", "item"), options)
    sequences, _ = make_sequences([table], reader, to_train=False)
    times = np.zeros(len(rows)) if kind == "none" else table["time"].to_numpy()
    order = sorted(range(len(rows)), key=lambda row: times[row])
    expected = {user: [str(row) for row in order if rows[row][0] == int(user)] for user in columns["user"]}
    assert histories(sequences) == expected


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_bytes(as_csv(ROWS))
    return path


def test_a_stored_conversion_is_read_and_not_made_again(path, tmp_path):
    asked = Interactions(path, min_user_actions=2, min_item_actions=2)
    first = conversion.convert_once(asked, tmp_path / "data")
    (kept,) = (tmp_path / "data" / "converted").iterdir()
    inode = kept.stat().st_ino
    again = conversion.convert_once(asked, tmp_path / "data")
    assert kept.stat().st_ino == inode
    assert again[0].fingerprint == first[0].fingerprint and again[1] == first[1]
    np.testing.assert_array_equal(again[0].vocabulary.counts, first[0].vocabulary.counts)


def test_equal_files_are_stored_as_equal_bytes_under_the_same_name(path, tmp_path):
    for folder in ("one", "two"):
        conversion.convert_once(Interactions(path), tmp_path / folder)
    ((one,), (two,)) = ([*(tmp_path / folder / "converted").iterdir()] for folder in ("one", "two"))
    assert one.name == two.name and one.read_bytes() == two.read_bytes()


def test_another_file_or_option_is_converted_anew(path, tmp_path):
    folder = tmp_path / "data"
    whole, _ = conversion.convert_once(Interactions(path), folder)
    fewer, _ = conversion.convert_once(Interactions(path, min_item_actions=2), folder)
    path.write_bytes(as_csv(ROWS[:50]))
    changed, _ = conversion.convert_once(Interactions(path), folder)
    assert len({whole.fingerprint, fewer.fingerprint, changed.fingerprint}) == 3
    assert len(list((folder / "converted").iterdir())) == 3


def test_a_change_of_any_of_several_files_is_seen(path, tmp_path):
    asked = Interactions([path, tmp_path / "more*.csv"])
    (tmp_path / "more.csv").write_bytes(as_csv(LATER[:2]))
    first, _ = conversion.convert_once(asked, tmp_path / "data")
    assert conversion.convert_once(asked, tmp_path / "data")[0].fingerprint == first.fingerprint
    (tmp_path / "more.csv").write_bytes(as_csv(LATER[:3]))
    assert conversion.convert_once(asked, tmp_path / "data")[0].num_actions == first.num_actions + 1
    (tmp_path / "more2.csv").write_bytes(as_csv(LATER[3:7]))
    assert conversion.convert_once(asked, tmp_path / "data")[0].num_actions == first.num_actions + 5
    assert len(list((tmp_path / "data" / "converted").iterdir())) == 3


def test_a_kept_conversion_is_not_taken_for_one_of_other_folders_that_name_columns(tmp_path):
    for user in "12":
        rows = [(item, time) for time, item in enumerate("xyz")]
        write(tmp_path, f"hive/user={user}/0.parquet", as_parquet(rows, ("item", "time")))
    first, _ = conversion.convert_once(Interactions(tmp_path / "hive"), tmp_path / "data")
    (tmp_path / "hive" / "user=1").rename(tmp_path / "hive" / "user=007")
    again, _ = conversion.convert_once(Interactions(tmp_path / "hive"), tmp_path / "data")
    assert (set(first.users), set(again.users)) == ({"1", "2"}, {"007", "2"})


@pytest.mark.parametrize("damage", ["cut short", "flipped", "something else"])
def test_a_damaged_conversion_is_made_again(path, tmp_path, damage):
    first, _ = conversion.convert_once(Interactions(path), tmp_path / "data")
    (kept,) = (tmp_path / "data" / "converted").iterdir()
    whole = kept.read_bytes()
    if damage == "something else":
        npz.write(kept, {"items": np.arange(3)})
    else:
        middle = len(whole) // 2
        kept.write_bytes(
            whole[:middle] + (b"" if damage == "cut short" else bytes([whole[middle] ^ 255]) + whole[middle + 1 :])
        )
    with pytest.warns(FileWarning, match="; converted again$"):
        again, _ = conversion.convert_once(Interactions(path), tmp_path / "data")
    assert again.fingerprint == first.fingerprint and kept.read_bytes() == whole


def test_data_are_read_where_the_conversion_cannot_be_stored(path):
    with pytest.warns(FileWarning, match="the converted data are not kept"):
        sequences, _ = conversion.convert_once(Interactions(path), path)
    assert histories(sequences) == plainly(ROWS)


def test_the_report_counts_rows_read_and_kept(path):
    _, report = conversion.convert(Interactions(path, min_user_actions=3, min_item_actions=2))
    assert report.read == {"users": 13, "items": 10, "actions": 74}
    assert report.kept == {"users": 12, "items": 9, "actions": 72}
    assert "kept: 12 users, 9 items, 72 actions (users with at least 3, items with at least 2 actions)" in str(report)


# The raw sources of the data sets, in the layouts of their publishers


RAW = {
    "beauty": lambda folder: write(folder, "ratings_Beauty.csv", as_text(rated(ROWS), ",")),
    "beauty packed": lambda folder: write(folder, "ratings_Beauty.csv.gz", as_text(rated(ROWS), ",")),
    "ml-1m": lambda folder: write(folder, "ml-1m/ratings.dat", as_text(rated(ROWS), "::")),
}


@pytest.mark.parametrize("case", RAW)
def test_a_raw_source_is_filtered_as_the_original_was(tmp_path, case):
    RAW[case](tmp_path)
    sequences = datasets.load(case.split()[0], tmp_path, source="raw")
    assert histories(sequences) == plainly(ROWS, 5, 5)
    assert datasets.load(f"{case.split()[0]}-raw", tmp_path).fingerprint == sequences.fingerprint


def test_steam_is_read_from_python_dictionaries_by_day_and_row(tmp_path):
    rows = [(user, item, f"2017-12-{31 - (100 - time):02d}") for user, item, time in ROWS if time > 90]
    content = as_literals([(*row, "it's \\ fun") for row in rows], ("username", "product_id", "date", "text"))
    write(tmp_path, "steam_reviews.json.gz", content + b"{u'page': 1}\n")
    sequences, report = datasets.load_with_report("steam", tmp_path, "raw")
    assert histories(sequences) == plainly([row for row in ROWS if row[2] > 90], 5, 5)
    assert f"skipped 1 bad rows: the user's id is missing (the first: line {len(rows) + 1})" in report.notes


def test_the_rare_items_of_ml_20m_stay(tmp_path):
    content = as_csv(rated(ROWS), ("userId", "movieId", "rating", "timestamp"))
    write(tmp_path, "ml-20m/ratings.csv", content)
    assert histories(datasets.load("ml-20m", tmp_path, source="raw")) == plainly(ROWS, 5, 1)


@pytest.mark.parametrize("name", ["beauty.txt", "beauty.txt.gz"])
def test_an_unknown_authors_file_is_read_once_with_a_warning(tmp_path, name):
    content, opened = b"1 2\n1 3\n", []
    write(tmp_path, name, content)
    path = str(tmp_path / name)
    sys.addaudithook(lambda event, args: opened.append(event) if event == "open" and str(args[0]) == path else None)
    with pytest.warns(DataWarning, match=r"is not the file that the authors published \(git:16718a33"):
        datasets.load("beauty", tmp_path)
    assert len(opened) == 1


@pytest.mark.filterwarnings("error::bert4rec_tf.Bert4RecWarning")
@pytest.mark.parametrize("name", ["beauty.txt", "beauty.txt.gz"])
def test_the_published_authors_file_gives_no_warning(tmp_path, monkeypatch, name):
    content = b"1 2\n1 3\n"
    write(tmp_path, name, content)
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    source = datasets.Source("beauty.txt", Remote(("http://localhost/",), f"git:{blob}"))
    monkeypatch.setitem(datasets.DATASETS, "beauty", datasets.Dataset("Beauty", source))
    datasets.load("beauty", tmp_path)


def test_the_published_sources_are_named_with_their_checksums():
    assert datasets.find_source("steam-sample").remote is None
    for name, dataset in datasets.DATASETS.items():
        for source in filter(None, (dataset.processed, dataset.raw)):
            remote = source.remote
            if remote is None:
                continue  # a file that everybody puts into the data folder
            manner, digits = remote.checksum.split(":")
            assert len(digits) == {"git": 40, "sha256": 64}[manner] and all(
                url.startswith("https://") for url in remote.urls
            )
            assert (source.terms is not None) == name.startswith("ml-")


def test_a_data_set_without_a_download_is_read_from_the_data_folder(tmp_path):
    with pytest.raises(UserError, match=r"'steam-sample' cannot be downloaded. Put steam-sample.csv or .* into"):
        datasets.load("steam-sample", tmp_path)
    (tmp_path / "steam-sample.csv").write_text("user,item,timestamp\n" + "".join(f"9,{i},{9 - i}\n" for i in range(5)))
    sequences = datasets.load("steam-sample", tmp_path)
    assert sequences.vocabulary.decode(sequences[0]) == ["4", "3", "2", "1", "0"]


def test_real_files_have_the_blob_ids_of_git(real_file):
    content = gzip.decompress(real_file("beauty.txt.gz").read_bytes())
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    remote = datasets.DATASETS["beauty"].processed.remote
    assert remote.checksum == f"git:{blob}"


def test_data_stand_above_table_1_with_a_reason_to_differ(real_data):
    _, ours, papers, remark = datasets.describe_data("ml-1m", real_data("ml-1m")).splitlines()
    assert ours.split() == ["ML-1m", "6,040", "3,416", "999,611", "165.50", "4.84%"]
    assert papers.split()[-5:] == ["6,040", "3,416", "1.0m", "163.5", "4.79%"]
    assert remark.startswith("Table 1's mean length and density of ML-1m are")


# Names


def test_a_source_is_part_of_a_data_set_s_name():
    assert (
        add_source("beauty", "processed") == "beauty"
        and add_source("beauty", "raw") == add_source("beauty-raw", "raw") == "beauty-raw"
    )
    assert remove_source("beauty-raw") == "beauty"
    assert presets.make_run("beauty", source="raw").dataset == "beauty-raw"
    assert presets.make_run("beauty", source="raw").flatten() == presets.make_run("beauty").flatten()
    with pytest.raises(UserError, match="Unknown source: 'rawe'"):
        add_source("beauty", "rawe")
    for family_name in ("synthetic", "steam-sample"):
        with pytest.raises(UserError, match=f"'{family_name}' has no raw source"):
            datasets.load(f"{family_name}-raw")


def test_own_data_are_named_by_their_file_and_options():
    names = {
        "own-ratings": Interactions("a/ratings.csv"),
        "own-u": Interactions("u.data.gz"),
        "own-my_file_": Interactions("my file\u00e9.csv"),
    }
    assert [asked.name for asked in names.values()] == list(names)
    others = [
        Interactions("ratings.csv", **options)
        for options in (
            {},
            {"min_user_actions": 5},
            {"min_item_actions": 5},
            {"user_column": "u"},
            {"bad_rows": "skip"},
        )
    ]
    assert len({asked.name for asked in others}) == 5 and all(asked.name.startswith("own-ratings") for asked in others)
    assert Interactions("ratings.csv", min_user_actions=1).name == "own-ratings"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1), st.integers(1, 4), st.integers(1, 4))
def test_a_k_core_drops_users_and_items_until_none_is_below_the_minimum(actions, min_user, min_item):
    left, before = actions, None
    while left != before:
        before = left
        users, items = Counter(user for user, _ in left), Counter(item for _, item in left)
        left = [(user, item) for user, item in left if users[user] >= min_user and items[item] >= min_item]
    users, items = np.array(actions).T
    chosen = filter_actions(users, items, min_user, min_item, k_core=True)
    found = [action for action, kept in zip(actions, chosen) if kept]
    assert found == left


def test_a_file_has_the_columns_of_its_folders_from_within_them_too(tmp_path, monkeypatch):
    rows = [("a", "x", 1), ("a", "y", 2), ("b", "x", 2)]
    for time in (1, 2):
        write(tmp_path, f"day={time}/0.parquet", as_parquet([row[:2] for row in rows if row[2] == time], HEADER[:2]))
    monkeypatch.chdir(tmp_path / "day=2")
    assert histories(read([tmp_path / "day=1", "0.parquet"])[0]) == plainly(rows)


def test_folders_far_above_what_was_named_are_no_columns(tmp_path):
    for item in "56":
        write(tmp_path, f"item={item}/z/day={item}/0.parquet", as_parquet([("a", f"t{item}")] * 2, ("user", "thing")))
    for named in ("item=5/z/day=5/0.parquet", "item=5/z", "item=5/z/*/*.parquet"):
        assert "the items. Give --item_column; the columns are: user, thing, day" in refusal(tmp_path / named)
    assert histories(read(tmp_path)[0]) == {"a": ["5", "6"]}


def test_a_folder_is_read_by_the_rules_of_pyarrow_s_datasets(tmp_path, monkeypatch):
    rows = [("a", "x", 10), ("a", "y", 9), ("b", "x", 2), ("b", "z", 1)]
    for place, (user, item, time) in enumerate(rows):
        folder = tmp_path / "data" / f"day={time}" / "more"
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, f"{place}.parquet", as_parquet([(user, item)], HEADER[:2]))
    for name in ("_tmp.parquet", ".hidden.parquet", "_logs/a.parquet", ".old/a.parquet", "b/.c/a.parquet"):
        write(tmp_path / "data", name, b"unfinished")
    sequences, report = read(tmp_path / "data")
    assert histories(sequences) == plainly(rows) and "time 'day'" in report.columns
    monkeypatch.chdir(tmp_path / "data")
    assert histories(read(".")[0]) == histories(read("**/*.parquet")[0]) == plainly(rows)
    days = read(tmp_path / "data", item_column="day", time_column="none")[0]
    assert histories(days) == {"a": ["10", "9"], "b": ["1", "2"]}
    table = pyarrow.dataset.dataset(tmp_path / "data", partitioning="hive").to_table()
    assert histories(b4r.interactions(table)) == plainly(rows)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("_delta_log/0.json", "Delta"), (".hoodie/properties", "Hudi"), ("metadata/v1.metadata.json", "Iceberg")],
)
def test_a_table_whose_files_keep_deleted_rows_is_refused(tmp_path, memory, name, kind):
    lake = tmp_path / "lake"
    lake.mkdir()
    content = as_parquet([("a", "x", 1), ("a", "y", 2)])
    inner = "data/" if kind == "Iceberg" else ""
    for file, its_content in ((f"{inner}0.parquet", content), (f"{inner}day=1/0.parquet", content), (name, b"{}")):
        (lake / file).parent.mkdir(parents=True, exist_ok=True)
        write(lake, file, its_content)
        memory.pipe_file(f"/lake/{file}", its_content)
    ends = ("", "**/*.parquet", f"{inner}*.parquet", f"{inner}day=1", f"{inner}day=*/*.parquet")
    for folder in (lake, "memory://lake"):
        for end in ends:
            assert f"{kind}, whose files keep deleted rows" in refusal(f"{folder}/{end}")
    assert f"{kind}, whose files keep deleted rows" in refusal(f"{tmp_path}/*/{inner}*.parquet")
    write(lake, "export.csv", b"user,item\na,x\na,y\n")
    (lake / "export").mkdir()
    write(lake, "export/0.parquet", content)
    for path in (f"{lake}/*.csv", f"{lake}/export", f"{lake}/export/*.parquet"):
        assert histories(read(path)[0]) == {"a": ["x", "y"]}


def test_a_pattern_may_have_a_wildcard_before_two_stars(tmp_path):
    for name in ("shop-1/a/0.parquet", "shop-2/b/0.parquet", "shop-2/.old/0.parquet"):
        (tmp_path / name).parent.mkdir(parents=True)
        write(tmp_path, name, as_parquet([(name[:6], "x", 1), (name[:6], "y", 2)]))
    assert set(histories(read(f"{tmp_path}/shop-*/**/*.parquet")[0])) == {"shop-1", "shop-2"}
