"""A secret is private, and proofs are bound to what they prove."""

import pytest

from trimtab.core.errors import Refused
from trimtab.core.wire.secrets import new_secret, proof, read_secret


def test_a_secret_is_readable_by_its_owner_only(tmp_path):
    path = tmp_path / "secret"
    secret = new_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_secret(path) == secret
    assert new_secret(tmp_path / "other") != secret


def test_a_secret_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "secret"
    new_secret(path)
    path.chmod(0o644)
    with pytest.raises(Refused, match="mode 644"):
        read_secret(path)


def test_a_file_that_is_no_secret_is_refused(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"short")
    path.chmod(0o600)
    with pytest.raises(Refused, match="5 bytes"):
        read_secret(path)


def test_a_secret_is_never_overwritten(tmp_path):
    new_secret(tmp_path / "secret")
    with pytest.raises(FileExistsError):
        new_secret(tmp_path / "secret")


def test_parts_cannot_be_shifted_between_each_other():
    assert proof(b"k", b"ab", b"c") != proof(b"k", b"a", b"bc")
    assert proof(b"k", b"ab") != proof(b"l", b"ab")
