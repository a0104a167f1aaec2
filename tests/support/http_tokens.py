"""Three tokens for HTTP tests (one with some rights, an admin, and one without rights): their grants and their headers."""

from hashlib import sha256

from toymq_py.auth.tokens import Authority, Grant, parse_grants

RIGHTS = {
    "billing": 'publish = ["orders.*"]\nsubscribe = ["orders.>"]',
    "operator": "admin = true",
    "outsider": "",
}


def grants(*names: str) -> tuple[Grant, ...]:
    return parse_grants(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{sha256(f"{name}-token".encode()).hexdigest()}"\n{RIGHTS[name]}\n'
            for name in names
        ),
        "auth.toml",
    )


def three_tokens() -> Authority:
    return Authority(grants(*RIGHTS))


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-token"}
