import argparse, concurrent.futures, contextlib, functools, json, os, select, sys, threading, time, uuid
import psycopg, psycopg.rows
clock = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)  # Keeps running while the machine is suspended.

class Lock(contextlib.AbstractContextManager):
    """One key, held once, by its own session, under the rules of ../../docs/sql-protocol.md."""
    def __init__(self, url, key, wait=0.0, ttl=5.0):
        self.url, self.key, self.wait, self.ttl, self.interval, self.end = url, key, wait, ttl, ttl / 5, clock() + wait
        self.session, self.token, self.until, self.era, self.received = uuid.uuid4(), None, 0.0, None, 0.0
        self.db, self.windows, self.watch, self.delays, self.sat_out, self.longest = None, {}, [], {}, None, 0
        self.stop, self.acquired = threading.Event(), concurrent.futures.Future()  # Of the token, or of None.
        self.thread = threading.Thread(target=self.run, daemon=True)  # Sends all SQL.
        self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(2 * self.ttl)

    def held(self):
        """Whether no one else can have the key. Call it before each step of the work. A lost key stays lost."""
        if clock() >= self.until:
            self.token = None
        return self.token is not None

    def run(self):
        while self.held() or not self.acquired.done():
            try:
                self.db = self.db or psycopg.connect(
                    self.url, autocommit=True, row_factory=psycopg.rows.namedtuple_row, connect_timeout=2,
                    tcp_user_timeout=2000, keepalives_idle=1, keepalives_interval=1, options="-c statement_timeout=2s")
                if self.stop.is_set():
                    return self.close()
                self.heartbeat()
                if not self.acquired.done():
                    self.ask()
            except Exception as error:
                self.db = self.db and self.db.close()  # Whether it took effect is unknown: repeat on a new one.
                passing = isinstance(error, (psycopg.OperationalError, psycopg.InternalError))
                if not self.acquired.done() and (not passing or clock() >= self.end + self.ttl):
                    self.acquired.set_exception(error)
            self.stop.wait(self.interval) and time.sleep(0.1)

    def heartbeat(self):
        if self.until == 0:
            self.db.execute("select leadergroup.register(%s, 'python', %s)", (self.session, round(self.ttl * 1000)))
        sent, token = clock(), self.token
        own, *others = self.db.execute(
            "select *, (select token from leadergroup.lock where key = %s and session = %s) as token from "
            "leadergroup.beat(%s, %s)", (self.key, self.session, self.session, self.watch)).fetchall()
        now, gap = clock(), own.era_id != self.era or clock() - self.received > 2.5 * self.interval
        if own.works_with > 6:
            raise RuntimeError("the database's schema is too new for this program")
        if own.dead or token and (token != own.token or not self.held()):
            self.session, self.until = uuid.uuid4(), 0.0  # Lost. Waiting continues with a new session.
            return
        self.until, self.era, self.received, self.longest = sent + 0.8 * self.ttl, own.era_id, now, own.longest_ttl_ms
        seen = [("mark_dead(array[%s], array[%s::bigint])", o.ttl_ms, o.id, o.beat) for o in others if not o.dead]
        seen += [("end_quarantine(%s)", own.longest_ttl_ms, own.era_id)] if own.quarantine else []
        self.windows = {state: now if gap else self.windows.get(state, now) for state in seen}  # Unchanged since when.
        for (function, ttl_ms, *args), since in self.windows.items():
            if sent - since >= ttl_ms / 1000:
                self.db.execute("select leadergroup." + function, args)

    def ask(self):
        request = dict(key=self.key, grant_id=str(self.session), uid=str(self.session), namespace="-", name="python",
                       reason="asked for it", wait=self.wait > 0, sat_out=self.sat_out)
        query = "select *, holder_silent_ms > 2 * holder_ttl_ms as silent from leadergroup.acquire(%s, %s, 200, 100)"
        row = self.db.execute(query, (self.session, json.dumps([request]))).fetchone()
        ttl_ms, delay_ms, self.watch = row.holder_ttl_ms or 0, row.delay_ms or 0, [row.holder_session]
        if row.verdict == "delayed" and clock() >= self.delays.setdefault(row.token, clock() + delay_ms / 1000):
            self.sat_out = row.token
        lasts_ms = dict(held=row.silent and ttl_ms, delayed=delay_ms, quarantine=self.longest, busy=1).get(row.verdict)
        patience = 3 * max(lasts_ms / 1000, self.ttl) if lasts_ms and not self.wait else 0  # Of a single try.
        self.token = row.token if row.verdict == "granted" else None
        if self.held():
            self.acquired.set_result(row.token)
        elif row.verdict in ("tombstone", "foreign", "newer", "full") or clock() >= self.end + patience:
            self.close()
            self.acquired.set_result(None)

    def close(self):
        if self.held():
            request = json.dumps([dict(key=self.key, token=self.token, reason="released")])
            row = self.db.execute("select * from leadergroup.release(%s, %s)", (self.session, request)).fetchone()
            if row.next_session:
                self.db.execute("select leadergroup.wake(%s, %s)", (row.next_session, row.next_grant))
        self.db.execute("select leadergroup.close(%s)", (self.session,))

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, kind, default in ("url", str, None), ("key", str, None), ("--wait", float, 0), ("--ttl", float, 5):
        parser.add_argument(name, type=kind, default=default)
    with Lock(**vars(parser.parse_args())) as lock:
        if token := lock.acquired.result():
            print(f"held {token}", flush=True)
        while lock.held():
            if select.select([0], [], [], 0.05)[0] and not os.read(0, 65536) and lock.held():
                sys.exit()
        print("lost" if token else "not held", flush=True)
        sys.exit(76 if token else 75)
