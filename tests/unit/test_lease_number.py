"""The numbers that identify leases."""

from toymq_py.consumer_options import LEASE_NUMBER_MAX
from toymq_py.lease_number import new_lease_number


def test_numbers_differ_and_are_exact_in_json() -> None:
    numbers = {new_lease_number() for _ in range(1000)}
    assert len(numbers) == 1000
    assert 1 <= min(numbers) <= max(numbers) <= LEASE_NUMBER_MAX
