"""Deadlines of tickets: memory is that of what is awaited, not of all that has been."""

from roll_scheduler import Ticket, TicketState
from roll_scheduler.lifecycle.flight import DeadlineQueue, Flight, FlightGroup, VaryingDeadlineQueue


def running(number, now):
    ticket = Ticket(id=number, group=number, member=0, attempt=0, seed=0)
    flight = Flight(ticket, FlightGroup(number, 1), now)
    flight.state = TicketState.RUNNING
    return flight


def kept(queue):
    return len(queue._entries)


def test_what_has_ended_behind_one_that_runs_long_is_forgotten():
    equal, varying = DeadlineQueue(TicketState.RUNNING, 1e6), VaryingDeadlineQueue(TicketState.RUNNING)
    slow = running(0, 0.0)
    equal.push(slow, 0.0)
    varying.push(slow, 0.0, 1e6)
    for number in range(1, 20_000):
        flight = running(number, float(number))
        equal.push(flight, float(number))
        varying.push(flight, float(number), 2e6)
        flight.state = TicketState.GRADING
    assert kept(equal) < 1000 and kept(varying) < 1000
    assert equal.next_at() == varying.next_at() == 1e6
    assert equal.pop_expired(1e6) == [slow]
    assert varying.pop_expired(1e6) == [(slow, 1e6)]


def test_what_is_awaited_is_kept_however_many_there_are():
    queue = DeadlineQueue(TicketState.RUNNING, 5.0)
    flights = [running(number, float(number)) for number in range(3_000)]
    for number, flight in enumerate(flights):
        queue.push(flight, float(number))
    assert queue.pop_expired(2_999 + 5.0) == flights
