"""What a page from elsewhere makes a browser send is refused; programs, proxies and the server's own page are not."""

import pytest
from support.http_server import Server, best

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.serving.http import guard
from bert4rec_tf.serving.http.app import open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings

BODY = b'{"instances": [["a", "i3"]]}'


@pytest.fixture(scope="module")
def versions(exported):
    return open_versions(ServerSettings(model=str(exported)))


def asked(versions, headers, **settings):
    with Server(versions, **settings) as server:
        port = server.port
        filled = {name: value.replace("PORT", str(port)) for name, value in headers.items()}
        return server.client().post(BODY, headers=filled)


GOOD = {
    "a program": {},
    "localhost": {"Host": "localhost:PORT"},
    "an address of version 6": {"Host": "[::1]:PORT"},
    "the address of a machine": {"Host": "10.1.2.3:8501"},
    "the page": {"Host": "localhost:PORT", "Origin": "http://localhost:PORT"},
    "a charset": {"Content-Type": "application/json; charset=utf-8"},
    "curl -d": {"Content-Type": "application/x-www-form-urlencoded"},
}


@pytest.mark.parametrize("headers", GOOD.values(), ids=GOOD)
def test_programs_and_the_server_s_page_are_answered(versions, headers):
    answer = asked(versions, headers)
    assert answer.status == 200 and answer.json["predictions"][0]["items"] == best(["a", "i3"])[0]


BAD = {
    "a name that leads here": ({"Host": "evil.example:PORT"}, 403, "`Host` must be a name of this server"),
    "a name like an address": ({"Host": "127.0.0.1.evil.example"}, 403, "`Host` must be"),
    "no name": ({"Host": ""}, 403, "`Host` must be"),
    "a page elsewhere": ({"Origin": "http://evil.example"}, 403, "`Origin` must be this server's page"),
    "another port": ({"Host": "localhost:PORT", "Origin": "http://localhost:1"}, 403, "`Origin` must be"),
    "a page without a host": ({"Host": "", "Origin": "file:///x"}, 403, "`Host` must be"),
    "a form elsewhere": (
        {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://evil.example"},
        *(403, "`Origin` must be this server's page"),
    ),
    "plain text": ({"Content-Type": "text/plain;charset=UTF-8"}, 415, "`Content-Type` must be application/json"),
}


@pytest.mark.parametrize("headers, status, message", BAD.values(), ids=BAD)
def test_requests_of_foreign_pages_are_refused(versions, headers, status, message):
    answer = asked(versions, headers)
    assert answer.status == status and message in answer.json["error"]


def test_every_path_is_guarded(versions):
    with Server(versions) as server:
        for path in ("/", "/healthz", "/v1/models/bert4rec", "/page/items", "/none"):
            assert server.client().ask("GET", path, headers={"Host": "evil.example"}).status == 403


@pytest.mark.parametrize(
    "host, allowed, name, status",
    [
        ("0.0.0.0", "", "anything.example", 200),
        ("0.0.0.0", "shop.example, other", "Shop.Example:443", 200),
        ("0.0.0.0", "shop.example, other", "anything.example", 403),
        ("0.0.0.0", "shop.example", "10.0.0.7:8501", 200),
        ("127.0.0.1", "shop.example", "shop.example", 200),
        ("127.0.0.1", "shop.example", "localhost", 200),
        ("0.0.0.0", "shop.example:8443, https://other.example", "shop.example:8443", 200),
        ("0.0.0.0", "shop.example:8443, https://other.example", "other.example", 200),
        ("0.0.0.0", "shop.example:8443, https://other.example", "evil.example:8443", 403),
    ],
)
def test_allowed_names_are_answered_and_others_refused(versions, host, allowed, name, status):
    assert asked(versions, {"Host": name}, host=host, allowed_hosts=allowed).status == status


def test_an_address_may_be_allowed_too(versions):
    headers = {"Host": "shop.example", "Origin": "http://[2001:db8::5]:3000"}
    assert asked(versions, headers, allowed_hosts="shop.example, 2001:db8::5").status == 200
    assert asked(versions, headers, allowed_hosts="shop.example, 2001:db8::6").status == 403


@pytest.mark.parametrize("name", ["[2001:db8::1", ":8443", "shop.example, https://"])
def test_a_name_that_is_none_does_not_open_the_server(versions, name):
    with pytest.raises(UserError, match="`allowed_hosts` must be names"):
        guard.make_middleware(ServerSettings(model="model", host="0.0.0.0", allowed_hosts=name))


def test_only_addresses_of_this_machine_alone_are_loopback():
    assert all(map(guard.is_loopback, ["127.0.0.1", "127.8.0.1", "::1", "localhost", "LocalHost"]))
    assert not any(map(guard.is_loopback, ["0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "shop.example", ""]))


def test_a_page_behind_a_proxy_is_answered_if_its_name_is_allowed(versions):
    headers = {"Host": "10.0.0.7:8501", "Origin": "https://shop.example"}
    assert asked(versions, headers).status == 403
    assert asked(versions, headers, allowed_hosts="shop.example").status == 200
