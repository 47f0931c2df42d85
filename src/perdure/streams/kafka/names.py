"""Where the brokers are, and the names of everything that Perdure keeps there.

Rules kept here: two prefixes never meet, nor do two queues, whatever is in their names. Brokers allow few characters
in a topic, and refuse two topics that differ only in dots and underscores; so a dot stands between the parts of a name
and nowhere else, and what is not a letter, a digit or a hyphen is written as an underscore with its hexadecimal code.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec import Struct

from perdure.errors import SettingsError

#: Characters of a queue in the name of its topic; of a longer one there is the beginning, and a hash.
LONGEST = 50
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_OTHERS = re.compile(rb"[^A-Za-z0-9-]")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class Names(Struct, frozen=True):
    """The topics of one prefix, and the group that shares them.

    >>> Names("shop").queue("mail.out")
    'shop.q.mail_2eout'
    """

    prefix: str = "perdure"
    group: str = "workers"

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise SettingsError(
                f"{self.prefix!r} cannot be the prefix of topics in Kafka: use letters, digits, dots, hyphens and"
                " underscores, 64 at most"
            )
        if not self.group:
            raise SettingsError("the group of workers in Kafka needs a name")

    def queue(self, queue: str) -> str:
        return f"{escaped(self.prefix)}.q.{shortened(queue)}"

    @property
    def news(self) -> str:
        """What everybody reads: hints for one worker, ends of executions and other news."""
        return f"{escaped(self.prefix)}.news"

    @property
    def consumers(self) -> str:
        return f"{escaped(self.prefix)}.{shortened(self.group)}"


def escaped(name: str) -> str:
    """Without dots, and no two alike.

    >>> escaped("über_all")
    '_c3_bcber_5fall'
    """
    return _OTHERS.sub(lambda found: b"_%02x" % found[0][0], name.encode()).decode()


def shortened(name: str) -> str:
    text = escaped(name)
    if len(text) <= LONGEST:
        return text
    # No character is escaped as _h.
    return f"{text[:16]}_h{blake2b(name.encode(), digest_size=16).hexdigest()}"


class Address(Struct, frozen=True):
    """`place` is for people; `options` are for the driver, and have the password."""

    place: str
    options: dict[str, str]


def read_address(url: str) -> Address:
    """From kafka://[USER:PASSWORD@]HOST[:PORT][,HOST…][?mechanism=…&ca=FILE], or kafkas:// for TLS.

    >>> read_address("kafka://one,two:9093").place
    'one:9092,two:9093'
    """
    parts = urlsplit(url)
    account, _, hosts = parts.netloc.rpartition("@")
    servers = [host if re.search(r":\d+$", host) else f"{host}:9092" for host in hosts.split(",") if host]
    if not servers or parts.path.strip("/"):
        raise SettingsError("the address of a stream in Kafka is kafka://HOST:9092, or several hosts with commas")
    place = ",".join(servers)
    asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if unknown := asked.keys() - {"mechanism", "ca"}:
        raise SettingsError(f"kafka://{place}: unknown option {', '.join(sorted(unknown))}; there are mechanism and ca")
    mechanism = asked.get("mechanism", "PLAIN").upper()
    if mechanism not in _MECHANISMS:
        raise SettingsError(f"kafka://{place}: mechanism is one of {', '.join(_MECHANISMS)}")
    encrypted = parts.scheme == "kafkas"
    if "ca" in asked and not encrypted:
        raise SettingsError(f"kafka://{place}: a certificate authority needs TLS: write kafkas:// rather than kafka://")
    options = {"bootstrap.servers": place, "security.protocol": _protocol(bool(account), encrypted)}
    if account:
        user, _, password = account.partition(":")
        options |= {
            "sasl.mechanism": mechanism,
            "sasl.username": unquote(user),
            "sasl.password": unquote(password),
        }
    if "ca" in asked:
        options["ssl.ca.location"] = asked["ca"]
    return Address(place, options)


def _protocol(account: bool, encrypted: bool) -> str:
    return ("SASL_" if account else "") + ("SSL" if encrypted else "PLAINTEXT")
