"""A client of the lock in PostgreSQL, made to be copied. It needs Python 3.9 and psycopg 3.

It keeps to the rules of ../../docs/sql-protocol.md; R1, R2 and so on name them. Use it like this:

    client = Client("postgres://app@db.example/app", "worker-1", ttl=5.0)
    token = client.lock("nightly-report", wait=60.0)
    if token is not None:
        while work_is_left() and client.held("nightly-report"):
            do_a_step(token)  # Pass the token to every store that is written to.
        client.release("nightly-report")
    client.close()
"""

import json
import math
import sys
import threading
import time
import traceback
import uuid

import psycopg
from psycopg.rows import namedtuple_row

VERSION = 6  # Of the schema that this client was written for.
PATIENCE_MS, FORCE_MS = 200, 100
STATEMENT_TIMEOUT_MS = 2000


def clock():
    """R2: cannot be set, and runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class TooNew(Exception):
    """The schema is too new for this client."""


class Closed(Exception):
    """The client was closed."""


class Connection:
    """Runs one call a transaction, and connects again after each failure."""

    def __init__(self, url):
        self.url = url
        self.db = None
        self.one_at_a_time = threading.RLock()

    def call(self, sql, *arguments):
        with self.one_at_a_time:
            try:
                if self.db is None:
                    self.db = psycopg.connect(
                        self.url, autocommit=True, row_factory=namedtuple_row, connect_timeout=2,
                        tcp_user_timeout=2000, keepalives_idle=1, keepalives_interval=1,
                        options=f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c synchronous_commit=local")  # R28, R29
                return self.db.execute(sql, arguments).fetchall()
            except psycopg.Error:
                self.drop()  # R31: what was sent may still take effect, and its answer may come late.
                raise

    def drop(self):
        with self.one_at_a_time:
            if self.db is not None:
                self.db.close()
                self.db = None


def is_temporary(error):
    """R30."""
    return error.sqlstate is None or error.sqlstate[:2] in ("08", "40", "53", "55", "57", "58") or \
        error.sqlstate == "25006"


class Held:
    """A key that the session has been granted."""

    def __init__(self, session, token):
        self.session, self.token = session, token


class Session:
    """What is known of the own session. It never lives again: after its death there is another one."""

    def __init__(self):
        self.id = uuid.uuid4()  # R7
        self.registered = False
        self.beat = 0
        self.until = 0.0  # The end of the lease.
        self.over = 0.0  # When others may mark it dead, at the earliest.
        self.era = None
        self.revoked = 0
        self.compared = True  # Whether the held keys have been compared with the table in this era.


class Doubt:
    """A request of which a call was lost. It may still be granted the key, until it is void (R22)."""

    def __init__(self, session, key, grant, void_after, token=None):
        self.session, self.key, self.grant, self.void_after, self.token = session, key, grant, void_after, token
        self.due = None  # When no call can take effect any more.


class Client:
    """One session, with its heartbeat in a thread of its own. Keys are taken and released in the caller's thread.

    `on_lost` is called in a thread of its own, or by `close`. It may call the client. It should return soon: losses of
    other keys are told one after the other.
    """

    def __init__(self, url, name, ttl=5.0, on_lost=lambda key, token: None):
        self.name, self.ttl, self.interval, self.on_lost = name, ttl, ttl / 5, on_lost  # R6
        self.lock_of_state = threading.RLock()
        self.session = Session()
        self.keys = {}  # What is held, by key.
        self.unused = []  # Terms that are lost, but that the table may still have: (session, key, token, since when).
        self.untold = []  # What is lost, and the program does not know yet: (key, token).
        self.finished = []  # Sessions that are never renewed again, and have to be closed.
        self.doubts = []
        self.lost_commits = None  # The era in which commits were lost, until another one has begun.
        self.watched = set()  # The holders of keys that are waited for.
        self.windows = {}  # Since when a state has not changed, as observed.
        self.answered, self.quarantine = 0.0, None
        self.closing = threading.Event()
        self.failed = None
        self.beats, self.work = Connection(url), Connection(url)
        self.heartbeat()
        for run in (self.send_heartbeats, self.watch_the_lease):
            threading.Thread(target=run, daemon=True).start()

    # The lease.

    def has_lease(self, session):
        return session is self.session and self.now() < session.until  # R1

    def now(self):
        return clock()

    def held(self, key):
        """The token, if no one else can have the key now. Call it before each step of the work."""
        with self.lock_of_state:
            self.drop_what_is_lost()
            held = self.keys.get(key)
            return held.token if held else None

    def drop_what_is_lost(self):
        """R3: what the lease does not cover any more is lost, whatever the next heartbeat says."""
        for key, held in list(self.keys.items()):
            if not self.has_lease(held.session):
                self.lose(key)

    def lose(self, key):
        held = self.keys.pop(key)
        # The program has time to stop until others could have marked the session dead.
        self.unused.append((held.session, key, held.token, held.session.over))
        self.untold.append((key, held.token))

    def tell(self):
        """R4. Without the lock: the program may wait for a thread of its own that asks `held`."""
        while True:
            with self.lock_of_state:
                if not self.untold:
                    return
                key, token = self.untold.pop(0)
            try:
                self.on_lost(key, token)
            except Exception:
                traceback.print_exc()

    def watch_the_lease(self):
        while not self.closing.wait(self.ttl / 50):
            with self.lock_of_state:
                self.drop_what_is_lost()
            self.tell()

    # The heartbeat.

    def send_heartbeats(self):
        while not self.closing.wait(self.interval):
            try:
                self.heartbeat()
                self.end_unused_terms()
                self.end_doubts()
                self.close_finished()
            except TooNew as error:
                self.stop(error)
                return
            except psycopg.Error as error:
                if not is_temporary(error):
                    print(f"heartbeat: {error}", file=sys.stderr)
        self.beats.drop()

    def stop(self, error):
        """R33: it keeps nothing, and takes nothing any more."""
        self.failed = error
        with self.lock_of_state:
            self.session.until = 0.0
            self.drop_what_is_lost()

    def heartbeat(self):
        with self.lock_of_state:
            if self.closing.is_set():
                return
            session = self.session
        if not session.registered:
            self.beats.call("select leadergroup.register(%s, %s, %s)", session.id, self.name, round(self.ttl * 1000))
            session.registered = True
        sent = self.now()
        rows = self.beats.call("select * from leadergroup.beat(%s, %s)", session.id, list(self.watched))
        received = self.now()
        own, others = rows[0], rows[1:]
        if own.works_with > VERSION:
            raise TooNew(f"the schema needs a client of version {own.works_with}")
        if self.shows_lost_commits(session, own):
            self.lost_commits = own.era_id
        if own.dead:
            with self.lock_of_state:
                if session is self.session:
                    self.begin_another_session()
        if self.lost_commits == own.era_id:
            # R34. This answer renews nothing. If the call fails, the next heartbeat repeats it.
            self.beats.call("select leadergroup.commits_were_lost(%s)", own.era_id)
            self.lost_commits = None
            return
        if own.dead:
            return
        with self.lock_of_state:
            # First, so that a grant of the era before whose answer is still to come does not count (R16).
            if session.era not in (None, own.era_id) or session.revoked != own.revoked:
                session.compared = False
            session.beat, session.era, session.revoked = own.beat, own.era_id, own.revoked
        if not session.compared:
            self.compare_with_the_table(session)
        with self.lock_of_state:
            self.drop_what_is_lost()
            session.compared = True
            session.until, session.over = sent + self.ttl - self.ttl / 5, sent + self.ttl
        self.observe(sent, received, own, others)

    def shows_lost_commits(self, session, own):
        """R34: a heartbeat counts itself. A session that is unknown has no count."""
        if own.era_id != session.era:
            return False
        if own.id is None:
            return self.has_lease(session)
        return own.beat < session.beat + (0 if own.dead else 1)

    def begin_another_session(self):
        """R8, R9."""
        with self.lock_of_state:
            self.session = Session()
            self.drop_what_is_lost()

    def compare_with_the_table(self, session):
        """R15, on the connection of the heartbeat. An error leaves the lease as it is."""
        with self.lock_of_state:
            listed = dict(self.keys)
        rows = self.beats.call(
            "select key, token from leadergroup.lock where key = any (%s) and session = %s and holder_uid is not null",
            list(listed), session.id)
        present = {(row.key, row.token) for row in rows}
        with self.lock_of_state:
            for key, held in listed.items():
                if self.keys.get(key) is held and (key, held.token) not in present:
                    self.lose(key)

    # The observation of others.

    def observe(self, sent, received, own, others):
        gap = received - self.answered > 2.5 * self.interval  # R11
        era_changed = own.era_id != self.windows.get("era")  # R12
        states = {("session", other.id): (other.beat, other.ttl_ms) for other in others if not other.dead}
        if own.quarantine:
            states[("quarantine", own.era_id)] = (0, own.longest_ttl_ms)
        self.quarantine = own.longest_ttl_ms if own.quarantine else None
        windows = {"era": own.era_id}
        for name, state in states.items():
            before = self.windows.get(name)
            unchanged = before and before[0] == state and not self.must_restart(gap, era_changed)
            windows[name] = before if unchanged else (state, received)
        self.windows, self.answered = windows, received
        for (kind, of), ((beat, ttl_ms), since) in [item for item in windows.items() if item[0] != "era"]:
            if self.observed_for(sent, since) < ttl_ms / 1000:
                continue
            if kind == "session":
                self.mark_dead(of, beat, own.era_id)  # R10, R13
            else:
                self.end_quarantine(of)  # R17, R18

    def must_restart(self, gap, era_changed):
        return gap or era_changed

    def observed_for(self, sent, since):
        return sent - since

    def mark_dead(self, session, beat, era):
        self.beats.call(
            "select * from leadergroup.mark_dead(array[%s::uuid], array[%s::bigint], %s)", session, beat, era)

    def end_quarantine(self, era):
        self.beats.call("select leadergroup.end_quarantine(%s)", era)

    # Keys.

    def try_lock(self, key):
        """The token, or None. Takes longer if a silent holder, a delay or a quarantine has to be waited out (R14)."""
        return self.request(key, wait=0.0, queue=False)

    def lock(self, key, wait):
        """Waits in the queue. The token, or None if the wait is over."""
        return self.request(key, wait, queue=True)

    def request(self, key, wait, queue):
        end, grant, session = self.now() + wait, uuid.uuid4(), self.session  # R19
        delays, sat_out, patience = {}, None, 0.0
        asked, void_after = False, None
        while True:
            if self.failed:
                raise self.failed
            if self.closing.is_set():
                raise Closed("the client was closed")
            if session is not self.session:  # R9
                session, grant, sat_out = self.session, uuid.uuid4(), None
                asked, void_after = False, None
            try:
                answer = self.ask(session, key, grant, queue, sat_out)
            except psycopg.Error as error:
                if not is_temporary(error):
                    if asked:
                        self.end_request(session, key, grant, void_after)
                    raise
                answer, patience, void_after = None, max(patience, self.ttl), self.void_after(session)
            asked = True
            if answer and answer.verdict == "granted":
                if self.accept(session, key, answer):
                    self.note_doubt(session, key, grant, void_after, answer.token)
                    return answer.token
                patience = max(patience, self.ttl)
            elif answer and answer.verdict in ("tombstone", "foreign", "newer", "full"):
                self.end_request(session, key, grant, void_after)
                return None
            elif answer:
                patience = max(patience, self.patience_for(answer, queue))
                if answer.verdict == "delayed":
                    self.note_delay(delays, answer)
                    if self.now() >= delays[answer.token]:
                        sat_out = answer.token
                        continue
            if self.now() >= end + patience:
                self.end_request(session, key, grant, void_after)
                return None
            self.pause(answer, end + patience)

    def note_delay(self, delays, answer):
        """R21: from the receipt of the first answer."""
        delays.setdefault(answer.token, self.now() + answer.delay_ms / 1000)

    def pause(self, answer, end):
        """R20: until the next time to ask."""
        soon = answer is None or answer.verdict not in ("waiting", "held", "delayed", "quarantine")
        self.closing.wait(min(self.interval / 4 if soon else self.interval, max(0.0, end - self.now())))

    def ask(self, session, key, grant, queue, sat_out):
        request = {"key": key, "grant_id": str(grant), "uid": str(session.id), "namespace": "program",
                   "name": self.name, "reason": "asked for it", "wait": queue, "sat_out": sat_out,
                   "void_after": self.void_after(session)}
        rows = self.work.call("select * from leadergroup.acquire(%s, %s, %s, %s)", session.id, json.dumps([request]),
                              PATIENCE_MS, FORCE_MS)
        answer = rows[0]
        with self.lock_of_state:
            self.watched = {answer.holder_session} if answer.holder_session else set()
        return answer

    def accept(self, session, key, answer):
        """R5, R16: a grant counts only under the lease, and in the era of the last heartbeat."""
        with self.lock_of_state:
            if not self.has_lease(session):
                return False
            if answer.era_id == session.era:
                self.keys[key] = Held(session, answer.token)
                return True
        self.work.drop()
        return False

    def patience_for(self, answer, queue):
        """For how much longer than asked a single try lasts, since it has to observe something (R14)."""
        if queue:
            return 0.0
        if answer.verdict == "held" and answer.holder_ttl_ms and answer.holder_silent_ms > 2 * answer.holder_ttl_ms:
            return answer.holder_ttl_ms / 1000 + 4 * self.interval
        if answer.verdict == "delayed":
            return answer.delay_ms / 1000 + 4 * self.interval
        if answer.verdict == "quarantine":
            return (self.quarantine or self.ttl * 1000) / 1000 + 4 * self.interval
        return 0.0 if answer.verdict == "held" else self.ttl  # R23: soon, the answer will be another one.

    def void_after(self, session):
        """R22: by then, a call that is sent now has taken effect or never will."""
        return session.beat + math.ceil(STATEMENT_TIMEOUT_MS / 1000 / self.interval) + 2

    def end_request(self, session, key, grant, void_after):
        self.give_up(session, key, grant)
        self.note_doubt(session, key, grant, void_after)

    def note_doubt(self, session, key, grant, void_after, token=None):
        if void_after is not None:
            with self.lock_of_state:
                self.doubts.append(Doubt(session, key, grant, void_after, token))

    def give_up(self, session, key, grant):
        """R22. If no answer comes, the session is closed instead: that ends all that it may have been granted."""
        for _ in range(3):
            if self.closing.is_set():
                return  # Closing the session replaces it.
            try:
                rows = self.work.call("select * from leadergroup.give_up(%s, %s, %s)", session.id, key, grant)
                self.wake(rows[0])
                return
            except psycopg.Error:
                self.closing.wait(self.interval)
        self.finish(session)

    def finish(self, session):
        """Loses all keys of the session now. It is closed when others could have marked it dead, and not before: until
        then, the program has time to stop (R4)."""
        with self.lock_of_state:
            if session is not self.session:
                return  # It is dead, or was finished before.
            self.session = Session()
            self.drop_what_is_lost()
            self.unused = [term for term in self.unused if term[0] is not session]
            self.finished.append(session)

    def close_finished(self):
        """Repeated by each heartbeat, until it is answered."""
        for session in list(self.finished):
            if self.now() >= session.over:
                self.beats.call("select leadergroup.close(%s, false)", session.id)
                self.finished.remove(session)

    def end_doubts(self):
        """R22: gives requests up again once no lost call can grant them the key any more."""
        for doubt in list(self.doubts):
            with self.lock_of_state:
                held = self.keys.get(doubt.key)
                lasts = held is not None and held.token == doubt.token
                lasts = lasts or any(term[2] == doubt.token and term[1] == doubt.key for term in self.unused)
                over = doubt.session is not self.session
            if not over and doubt.due is None and doubt.session.beat > doubt.void_after:
                doubt.due = self.now() + STATEMENT_TIMEOUT_MS / 1000
            if not over and (lasts or doubt.due is None or self.now() < doubt.due):
                continue
            if not over:
                rows = self.beats.call(
                    "select * from leadergroup.give_up(%s, %s, %s)", doubt.session.id, doubt.key, doubt.grant)
                self.wake(rows[0], self.beats)
            with self.lock_of_state:
                self.doubts.remove(doubt)

    def release(self, key):
        """Ends the work's term. False if it was lost before."""
        with self.lock_of_state:
            token = self.held(key)
            if token is None:
                return False
            session = self.keys.pop(key).session
        while True:
            try:
                self.end_term(session, key, token)  # R25
                return True
            except psycopg.Error as error:
                if not is_temporary(error) or not self.has_lease(session):
                    with self.lock_of_state:
                        self.unused.append((session, key, token, self.now()))
                    return False
                time.sleep(self.interval / 4)

    def end_term(self, session, key, token, connection=None):
        release = json.dumps([{"key": key, "token": token, "reason": "released"}])
        connection = connection or self.work
        row = connection.call("select * from leadergroup.release(%s, %s)", session.id, release)[0]
        self.wake(row, connection)

    def wake(self, row, connection=None):
        """R26."""
        if row.next_session is not None:
            try:
                (connection or self.work).call("select leadergroup.wake(%s, %s)", row.next_session, row.next_grant)
            except psycopg.Error:
                pass  # It is only a hint.

    def end_unused_terms(self):
        """R25: with heartbeats, a term that is lost would keep the key from all others."""
        with self.lock_of_state:
            due = [term for term in self.unused if self.now() >= term[3]]
        for term in due:
            session, key, token, _ = term
            self.end_term(session, key, token, self.beats)
            with self.lock_of_state:
                if term in self.unused:
                    self.unused.remove(term)

    def close(self):
        """Ends the session. Keys that were not released are lost before others can have them."""
        with self.lock_of_state:
            if self.closing.is_set():
                return
            self.closing.set()
            session, in_order = self.session, self.has_lease(self.session)
            self.session = Session()  # Nothing renews the other one any more, and this one is never registered.
            self.drop_what_is_lost()
        self.tell()
        self.close_session(session, in_order)
        for finished in self.finished:
            self.close_session(finished, in_order=False)
        self.work.drop()

    def close_session(self, session, in_order):
        for _ in range(3):
            try:
                self.work.call("select leadergroup.close(%s, %s)", session.id, in_order)
                return
            except psycopg.Error:
                time.sleep(self.interval / 4)


def main(client_class=Client):
    """The lines of ../../docs/conformance.md."""
    client = None
    output = threading.Lock()

    def say(*words):
        with output:
            print(*words, flush=True)

    for line in sys.stdin:
        command, *words = line.split()
        try:
            if command == "open":
                url, name, ttl_ms = words
                client = client_class(url, name, int(ttl_ms) / 1000, lambda key, token: say("lost", key, token))
                say("ok")
            elif command in ("try", "lock"):
                token = client.try_lock(words[0]) if command == "try" else client.lock(words[0], int(words[1]) / 1000)
                say("refused") if token is None else say("granted", token)
            elif command == "held":
                token = client.held(words[0])
                say("no") if token is None else say("yes", token)
            elif command == "release":
                say("released" if client.release(words[0]) else "no")
            elif command == "close":
                client.close()
                say("ok")
            else:
                say("error", "unknown command")
        except Exception as error:
            say("error", " ".join(str(error).split()))


if __name__ == "__main__":
    main()
