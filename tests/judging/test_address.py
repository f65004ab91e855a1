"""Addresses of judges and hosts to listen on: what can be used, and what is refused before anything is connected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrm_trio.judging.address import checked_base, checked_host
from genrm_trio.judging.endpoint import Address, Endpoint
from genrm_trio.ops.settings import judge_address

GOOD = {
    "http://h": "http://h/",
    "https://h:1/v1": "https://h:1/",
    " http://h:65535/a/v1 ": "http://h:65535/a",
    "http://[::1]:80": "http://[::1]/",
    "HTTP://H": "http://h/",
    "http://\u00e9.x": "http://xn--9ca.x/",
}
BAD = [
    "http://[::1",
    "http://h:-1",
    "http://h:0",
    "http://h:65536",
    "http://h:" + "9" * 5000,
    "http://h:x",
    "http://",
    "http://:80",
    "http://a..b",
    "http://" + "x" * 64,
    "http://[zz]",
    "http://u:sesame@h",
    "http://h?x=1",
    "http://h#x",
    "http://h a",
    "http://h/\x00",
    "h:80",
    "ftp://h",
    "",
    "\ud800",
    "http://\ud800",
]


@pytest.mark.parametrize(("given", "url"), GOOD.items())
def test_an_address_is_taken_by_the_settings_and_by_the_endpoint(given: str, url: str) -> None:
    assert str(checked_base(given)) == url
    Endpoint(Address(judge_address(given) or ""))


@pytest.mark.parametrize("given", BAD)
def test_an_address_is_refused_by_both(given: str) -> None:
    with pytest.raises(ValueError, match=r"an address|a host") as caught:
        judge_address(given)
    assert "sesame" not in str(caught.value)
    with pytest.raises(ValueError, match=r"judge base_url: (an address|a host)"):
        Endpoint(Address(given))


@given(st.text(max_size=30) | st.text("abc:/[]@%.-0159?# ", max_size=30).map(lambda rest: f"http://{rest}"))
def test_what_the_settings_take_the_endpoint_takes(text: str) -> None:
    try:
        address = judge_address(text)
    except ValueError:
        return
    assert address is not None
    Endpoint(Address(address))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%lo", "h", "a.b.", "\u00e9.x", "x" * 63, "0"])
def test_a_host_that_a_resolver_can_be_asked_for(host: str) -> None:
    assert checked_host(host) == host


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 64, "a." + "x" * 64, "a b", "a\x00b", "a\nb", "\udcff"])
def test_a_host_that_none_can_be_asked_for(host: str) -> None:
    with pytest.raises(ValueError, match="a host"):
        checked_host(host)
