"""Clients that each break one rule, and otherwise are the client in ../../examples/python: `broken.py R7`.

`broken.py R1+R10` breaks two.
"""

import os
import sys
import time
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../examples/python"))
sys.dont_write_bytecode = True

import lock  # noqa: E402
import psycopg  # noqa: E402

R = {}


def breaks(rule):
    def note(client):
        R[rule] = client
        return client
    return note


@breaks("P1")
class Chatty(lock.Client):
    def held(self, key):
        print("let me see", flush=True)
        return super().held(key)


@breaks("R1")
class Endless(lock.Client):
    """The lease lasts for the whole ttl, and a little longer."""

    def has_lease(self, session):
        return session is self.session and self.now() < session.until + self.ttl * 0.4


@breaks("R2")
class TimeOfDay(lock.Client):
    def now(self):
        return time.time()


@breaks("R3")
class Returning(lock.Client):
    """Holds again what it has held, once a heartbeat succeeds."""

    def held(self, key):
        with self.lock_of_state:
            held = self.keys.get(key)
            return held.token if held and self.has_lease(held.session) else None

    def drop_what_is_lost(self):
        for key, held in list(self.keys.items()):
            if held.session is not self.session:
                self.lose(key)
            elif not self.has_lease(held.session) and not getattr(held, "said", False):
                held.said = True
                self.on_lost(key, held.token)


@breaks("R4")
class Silent(lock.Client):
    def lose(self, key):
        held = self.keys.pop(key)
        self.unused.append((held.session, key, held.token, held.session.over))


@breaks("R5")
class Hasty(lock.Client):
    """Believes in a grant that arrives late."""

    def accept(self, session, key, answer):
        with self.lock_of_state:
            if answer.era_id == session.era:
                self.keys[key] = lock.Held(session, answer.token)
                return True
        return False


@breaks("R6")
class Slow(lock.Client):
    def send_heartbeats(self):
        self.interval = self.ttl * 0.6
        super().send_heartbeats()


@breaks("R7")
class Twin(lock.Client):
    """All processes have one session."""

    def heartbeat(self):
        self.session.id = uuid.UUID(int=7 << 64)
        super().heartbeat()


@breaks("R8")
class Undead(lock.Client):
    """Acts on under a session that is dead, and asks for another one later."""

    def begin_another_session(self):
        if self.keys:
            self.session.until = self.now() + self.ttl
            return
        super().begin_another_session()


@breaks("R9")
class Stubborn(lock.Client):
    """Loses its keys with its session, and goes on with that session."""

    def begin_another_session(self):
        with self.lock_of_state:
            self.session.until = 0.0
            self.drop_what_is_lost()
            self.unused.clear()


@breaks("R10")
class Impatient(lock.Client):
    def observed_for(self, sent, since):
        return 2 * (sent - since)

    def end_quarantine(self, era):
        pass


@breaks("R1+R10")
class Overlapping(Endless, Impatient):
    """Relies on a key for too long, and takes those of others too early: two hold a key at a time."""


@breaks("R11")
class Gapless(lock.Client):
    def must_restart(self, gap, era_changed):
        return era_changed


@breaks("R12")
class Eraless(lock.Client):
    def must_restart(self, gap, era_changed):
        return gap


@breaks("R13")
class Peaceful(lock.Client):
    def mark_dead(self, session, beat, era):
        pass


@breaks("R14")
class Once(lock.Client):
    def patience_for(self, answer, queue):
        return 0.0


@breaks("R15")
class Trusting(lock.Client):
    def compare_with_the_table(self, session):
        pass


@breaks("R16")
class AnyEra(lock.Client):
    def accept(self, session, key, answer):
        with self.lock_of_state:
            if not self.has_lease(session):
                return False
            self.keys[key] = lock.Held(session, answer.token)
            return True


@breaks("R17")
class Reckless(lock.Client):
    """Ends a quarantine with the first heartbeat that shows it."""

    def observe(self, sent, received, own, others):
        super().observe(sent, received, own, others)
        if own.quarantine:
            self.end_quarantine(own.era_id)


@breaks("R18")
class Shy(lock.Client):
    def end_quarantine(self, era):
        pass


@breaks("R19")
class Forgetful(lock.Client):
    """Asks again with another grant_id."""

    def ask(self, session, key, grant, queue, sat_out):
        return super().ask(session, key, uuid.uuid4(), queue, sat_out)


@breaks("R20")
class Listening(lock.Client):
    """Asks again only when it is woken, and it never is."""

    def pause(self, answer, end):
        self.closing.wait(max(0.0, end - self.now()))


@breaks("R21")
class Rude(lock.Client):
    def note_delay(self, delays, answer):
        delays[answer.token] = self.now()


@breaks("R22")
class Clinging(lock.Client):
    def give_up(self, session, key, grant):
        pass


@breaks("R23")
class Pedantic(lock.Client):
    def ask(self, session, key, grant, queue, sat_out):
        answer = super().ask(session, key, grant, queue, sat_out)
        if answer.verdict == "embargoed":
            raise ValueError("unexpected verdict")
        return answer


@breaks("R24")
class Floating(lock.Client):
    """Reads a token as some parsers of JSON do."""

    def ask(self, session, key, grant, queue, sat_out):
        answer = super().ask(session, key, grant, queue, sat_out)
        return answer._replace(token=answer.token and int(float(answer.token)))


@breaks("R25")
class Keeping(lock.Client):
    """Releases nothing in the database."""

    def release(self, key):
        with self.lock_of_state:
            return self.keys.pop(key, None) is not None


@breaks("R26")
class Quiet(lock.Client):
    def wake(self, row, connection=None):
        pass


@breaks("R27")
class Bundled(lock.Client):
    """Two calls in one transaction."""

    def ask(self, session, key, grant, queue, sat_out):
        self.work.call("select 1")
        with self.work.db.transaction():
            self.work.call("select * from leadergroup.beat(%s)", session.id)
            return super().ask(session, key, grant, queue, sat_out)


class OtherOptions(lock.Connection):
    options = ""

    def call(self, sql, *arguments):
        if self.db is None:
            self.db = psycopg.connect(self.url, autocommit=True, row_factory=lock.namedtuple_row, connect_timeout=2,
                                      tcp_user_timeout=2000, options=self.options)
        return super().call(sql, *arguments)


def with_options(options):
    class Connection(OtherOptions):
        pass

    Connection.options = options

    class Client(lock.Client):
        def __init__(self, *arguments):
            lock.Connection = Connection
            super().__init__(*arguments)

    return Client


R["R28"] = with_options("-c synchronous_commit=local")
R["R29"] = with_options("-c synchronous_commit=off -c statement_timeout=2s")


@breaks("R30")
class Fragile(lock.Client):
    """Loses its keys with its connection."""

    def heartbeat(self):
        try:
            super().heartbeat()
        except psycopg.Error:
            with self.lock_of_state:
                self.session.until = 0.0
                self.drop_what_is_lost()
            raise


@breaks("R31")
class Unsure(lock.Client):
    """Takes a lost answer for a refusal."""

    def request(self, key, wait, queue):
        try:
            return super().request(key, wait, queue)
        except ConnectionError:
            return None

    def ask(self, session, key, grant, queue, sat_out):
        try:
            return super().ask(session, key, grant, queue, sat_out)
        except psycopg.Error:
            raise ConnectionError from None


@breaks("R32")
class ByHand(lock.Client):
    """Ends a term without the functions."""

    def end_term(self, session, key, token, connection=None):
        (connection or self.work).call(
            "update leadergroup.lock set holder_uid = null, holder_namespace = null, holder_name = null, session = null,"
            " grant_id = null, end_reason = 'by hand' where key = %s and token = %s returning key", key, token)


@breaks("R33")
class Old(lock.Client):
    def heartbeat(self):
        lock.VERSION = 1 << 30
        super().heartbeat()


@breaks("R34")
class Unwary(lock.Client):
    """Renews its lease by a heartbeat that was counted before."""

    def shows_lost_commits(self, session, own):
        return False


if __name__ == "__main__":
    lock.main(R[sys.argv[1]])
