/**
 * A client of the lock in PostgreSQL, made to be copied. It needs Node 20 and the package pg.
 *
 * It keeps to the rules of ../../docs/sql-protocol.md; R1, R2 and so on name them. Use it like this:
 *
 *     const client = await Client.open("postgres://app@db.example/app", "worker-1", 5000);
 *     const token = await client.lock("nightly-report", 60_000);
 *     if (token !== undefined) {
 *       while (workIsLeft() && client.held("nightly-report") !== undefined) {
 *         await doAStep(token); // Pass the token to every store that is written to.
 *       }
 *       await client.release("nightly-report");
 *     }
 *     await client.close();
 *
 * Node offers CLOCK_MONOTONIC only, which stops while the machine is suspended, and R2 asks for more. On Linux,
 * /proc/uptime does not stop, and is read here.
 */

import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import pg from "pg";

const VERSION = 6; // Of the schema that this client was written for.
const PATIENCE_MS = 200;
const FORCE_MS = 100;
const STATEMENT_TIMEOUT_MS = 2000;

type Row = Record<string, any>;
type Token = bigint; // R24: a `number` does not have all integers above 2^53.
type Settled = () => void;

/** Milliseconds on a clock that cannot be set, and runs while the machine is suspended (R2). */
function now(): number {
  return Number.parseFloat(readFileSync("/proc/uptime", "latin1")) * 1000;
}

/** Runs one call a transaction, one after the other, and connects again after each failure. */
class Connection {
  private db: pg.Client | undefined;
  private last: Promise<unknown> = Promise.resolve();

  constructor(private readonly url: string) {}

  call(sql: string, ...values: unknown[]): Promise<Row[]> {
    const call = this.last.then(() => this.run(sql, values));
    this.last = call.catch(() => undefined);
    return call;
  }

  private async run(sql: string, values: unknown[]): Promise<Row[]> {
    try {
      if (this.db === undefined) {
        const db = new pg.Client({
          connectionString: this.url,
          connectionTimeoutMillis: STATEMENT_TIMEOUT_MS,
          query_timeout: 2 * STATEMENT_TIMEOUT_MS,
          keepAlive: true,
          options: `-c statement_timeout=${STATEMENT_TIMEOUT_MS} -c synchronous_commit=local`, // R28, R29
        });
        db.on("error", () => this.drop()); // An idle connection broke.
        this.db = db;
        await db.connect();
      }
      return (await this.db.query(sql, values)).rows;
    } catch (error) {
      this.drop(); // R31: what was sent may still take effect, and its answer may come late.
      throw error;
    }
  }

  drop(): void {
    const db = this.db;
    this.db = undefined;
    db?.end().catch(() => undefined);
  }
}

/** Whether to repeat the call (R30). */
function isTemporary(error: unknown): boolean {
  const code = (error as { code?: unknown }).code;
  // Other texts are errors of the network, such as ECONNRESET.
  if (typeof code !== "string" || !/^[0-9A-Z]{5}$/.test(code)) return true;
  return ["08", "40", "53", "55", "57", "58"].includes(code.slice(0, 2)) || code === "25006";
}

class TooNew extends Error {}

class Closed extends Error {}

/** What is known of the own session. It never lives again: after its death there is another one. */
class Session {
  readonly id = randomUUID(); // R7
  registered = false;
  until = 0; // The end of the lease.
  over = 0; // When others may mark it dead, at the earliest.
  beat = 0n;
  era: string | undefined;
  revoked = 0n;
  compared = true; // Whether the held keys have been compared with the table in this era.
}

interface Term {
  session: Session;
  key: string;
  token: Token;
}

/** A term that is lost. Until `due`, the program has time to stop. */
interface Unused extends Term {
  due: number;
}

/** A request of which a call was lost. It may still be granted the key, until it is void (R22). */
interface Doubt {
  session: Session;
  key: string;
  grant: string;
  voidAfter: bigint;
  token: Token | undefined;
  due?: number; // When no call can take effect any more.
}

interface Window {
  beat: string;
  ttlMs: number;
  since: number;
}

/** One session. Its heartbeats have a connection of their own. */
export class Client {
  private readonly interval: number;
  private readonly beats: Connection;
  private readonly work: Connection;
  private session = new Session();
  private readonly keys = new Map<string, Term>();
  private unused: Unused[] = []; // Terms that are lost, but that the table may still have.
  private finished: Session[] = []; // They are never renewed again, and have to be closed.
  private doubts: Doubt[] = [];
  private lostCommits: string | undefined; // The era in which commits were lost, until another one has begun.
  private watched: string[] = [];
  private windows = new Map<string, Window>();
  private windowsEra: string | undefined;
  private answered = 0;
  private quarantineMs = 0;
  private failed: Error | undefined;
  private closed = false;
  private readonly sleepers = new Set<Settled>();

  private constructor(
    url: string,
    private readonly name: string,
    private readonly ttlMs: number,
    private readonly onLost: (key: string, token: Token) => void,
  ) {
    this.interval = ttlMs / 5; // R6
    this.beats = new Connection(url);
    this.work = new Connection(url);
  }

  /** Registers a session and begins to send heartbeats. */
  static async open(
    url: string,
    name: string,
    ttlMs: number,
    onLost: (key: string, token: Token) => void = () => undefined,
  ): Promise<Client> {
    const client = new Client(url, name, ttlMs, onLost);
    await client.heartbeat();
    void client.sendHeartbeats();
    void client.watchTheLease();
    return client;
  }

  private sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const settle = () => {
        clearTimeout(timer);
        this.sleepers.delete(settle);
        resolve();
      };
      const timer = setTimeout(settle, ms);
      this.sleepers.add(settle);
    });
  }

  // The lease.

  private hasLease(session: Session): boolean {
    return session === this.session && now() < session.until; // R1
  }

  /** The token, if no one else can have the key now. Call it before each step of the work. */
  held(key: string): Token | undefined {
    this.dropWhatIsLost();
    return this.keys.get(key)?.token;
  }

  /** R3: what the lease does not cover any more is lost, whatever the next heartbeat says. */
  private dropWhatIsLost(): void {
    for (const term of [...this.keys.values()]) {
      if (!this.hasLease(term.session)) this.lose(term);
    }
  }

  private lose(term: Term): void {
    if (this.keys.get(term.key) !== term) return; // The program has released it, in `onLost`.
    this.keys.delete(term.key);
    this.unused.push({ ...term, due: term.session.over });
    try {
      this.onLost(term.key, term.token); // R4
    } catch (error) {
      console.error("onLost:", error);
    }
  }

  private async watchTheLease(): Promise<void> {
    while (!this.closed) {
      this.dropWhatIsLost();
      await this.sleep(this.ttlMs / 50);
    }
  }

  // The heartbeat.

  private async sendHeartbeats(): Promise<void> {
    for (;;) {
      await this.sleep(this.interval);
      if (this.closed) return this.beats.drop();
      try {
        await this.heartbeat();
        await this.endUnusedTerms();
        await this.endDoubts();
        await this.closeFinished();
      } catch (error) {
        if (error instanceof TooNew) {
          this.failed = error; // R33: it keeps nothing, and takes nothing any more.
          this.session.until = 0;
          this.dropWhatIsLost();
          return;
        }
        if (!isTemporary(error)) console.error("heartbeat:", error);
      }
    }
  }

  private async heartbeat(): Promise<void> {
    if (this.closed) return;
    const session = this.session;
    if (!session.registered) {
      await this.beats.call("select leadergroup.register($1, $2, $3)", session.id, this.name, this.ttlMs);
      session.registered = true;
    }
    const sent = now();
    const rows = await this.beats.call("select * from leadergroup.beat($1, $2)", session.id, this.watched);
    const received = now();
    const [own, ...others] = rows as [Row, ...Row[]];
    if (own.works_with > VERSION) throw new TooNew("the schema is too new for this client");
    if (this.showsLostCommits(session, own)) this.lostCommits = own.era_id;
    if (own.dead && session === this.session) {
      this.session = new Session(); // R8, R9
      this.dropWhatIsLost();
    }
    if (this.lostCommits === own.era_id) {
      // R34. This answer renews nothing. If the call fails, the next heartbeat repeats it.
      await this.beats.call("select leadergroup.commits_were_lost($1)", own.era_id);
      this.lostCommits = undefined;
      return;
    }
    if (own.dead) return;
    // First, so that a grant of the era before whose answer is still to come does not count (R16).
    const revoked = BigInt(own.revoked);
    if (session.era !== undefined && session.era !== own.era_id) session.compared = false;
    if (session.revoked !== revoked) session.compared = false;
    [session.beat, session.era, session.revoked] = [BigInt(own.beat), own.era_id, revoked];
    if (!session.compared) await this.compareWithTheTable(session);
    this.dropWhatIsLost();
    session.compared = true;
    [session.until, session.over] = [sent + this.ttlMs - this.ttlMs / 5, sent + this.ttlMs];
    await this.observe(sent, received, own, others);
  }

  /** R34: a heartbeat counts itself. A session that is unknown has no count. */
  private showsLostCommits(session: Session, own: Row): boolean {
    if (own.era_id !== session.era) return false;
    if (own.id === null) return this.hasLease(session);
    return BigInt(own.beat) < session.beat + (own.dead ? 0n : 1n);
  }

  /** R15, on the connection of the heartbeat. An error leaves the lease as it is. */
  private async compareWithTheTable(session: Session): Promise<void> {
    const listed = [...this.keys.values()];
    const sql = "select key, token from leadergroup.lock where session = $1 and holder_uid is not null";
    const rows = await this.beats.call(sql, session.id);
    const present = new Map(rows.map((row) => [row.key, BigInt(row.token)]));
    for (const term of listed) {
      if (present.get(term.key) !== term.token) this.lose(term);
    }
  }

  // The observation of others.

  private async observe(sent: number, received: number, own: Row, others: Row[]): Promise<void> {
    const restart = received - this.answered > 2.5 * this.interval || own.era_id !== this.windowsEra; // R11, R12
    const before = this.windows;
    const windows = new Map<string, Window>();
    const keep = (name: string, beat: string, ttlMs: number) => {
      const old = before.get(name);
      const unchanged = old !== undefined && !restart && old.beat === beat && old.ttlMs === ttlMs;
      windows.set(name, { beat, ttlMs, since: unchanged ? old.since : received });
    };
    for (const other of others) {
      if (!other.dead) keep(other.id, other.beat, Number(other.ttl_ms));
    }
    this.quarantineMs = own.quarantine ? Number(own.longest_ttl_ms) : 0;
    if (own.quarantine) keep("quarantine", "", this.quarantineMs);
    [this.windows, this.windowsEra, this.answered] = [windows, own.era_id, received];
    for (const [name, { beat, ttlMs, since }] of windows) {
      if (sent - since < ttlMs) continue;
      if (name === "quarantine") {
        await this.beats.call("select leadergroup.end_quarantine($1)", own.era_id); // R17, R18
      } else {
        const sql = "select * from leadergroup.mark_dead(array[$1::uuid], array[$2::bigint], $3)";
        await this.beats.call(sql, name, beat, own.era_id); // R10, R13
      }
    }
  }

  // Keys.

  /** The token, if it was granted. Takes longer if a silent holder, a delay or a quarantine must be waited out (R14). */
  tryLock(key: string): Promise<Token | undefined> {
    return this.request(key, 0, false);
  }

  /** Waits in the queue. No token: the wait is over. */
  lock(key: string, waitMs: number): Promise<Token | undefined> {
    return this.request(key, waitMs, true);
  }

  private async request(key: string, waitMs: number, queue: boolean): Promise<Token | undefined> {
    const end = now() + waitMs;
    const delays = new Map<string, number>();
    let [session, grant, patience] = [this.session, randomUUID(), 0]; // R19
    let satOut: string | undefined;
    let asked = false;
    let voidAfter: bigint | undefined; // Of a call that was lost.
    for (;;) {
      if (this.failed !== undefined) throw this.failed;
      if (this.closed) throw new Closed("the client was closed");
      if (session !== this.session) {
        [session, grant, satOut] = [this.session, randomUUID(), undefined]; // R9
        [asked, voidAfter] = [false, undefined];
      }
      let answer: Row | undefined;
      try {
        answer = await this.ask(session, key, grant, queue, satOut);
      } catch (error) {
        if (!isTemporary(error)) {
          if (asked) await this.endRequest(session, key, grant, voidAfter);
          throw error;
        }
        voidAfter = this.voidAfter(session);
      }
      asked = true;
      const verdict: string = answer?.verdict ?? "no answer";
      if (answer !== undefined && verdict === "granted" && this.accept(session, key, answer)) {
        this.noteDoubt(session, key, grant, voidAfter, BigInt(answer.token));
        return BigInt(answer.token);
      }
      if (["tombstone", "foreign", "newer", "full"].includes(verdict)) {
        await this.endRequest(session, key, grant, voidAfter);
        return undefined;
      }
      if (answer !== undefined && verdict === "delayed") {
        // R21: from the receipt of the first answer.
        if (!delays.has(answer.token)) delays.set(answer.token, now() + Number(answer.delay_ms));
        if (now() >= delays.get(answer.token)!) {
          satOut = answer.token;
          continue;
        }
      }
      patience = Math.max(patience, this.patienceFor(verdict, answer, queue));
      const left = end + patience - now();
      if (left <= 0) {
        await this.endRequest(session, key, grant, voidAfter);
        return undefined;
      }
      const soon = !["waiting", "held", "delayed", "quarantine"].includes(verdict); // R20, R23
      await this.sleep(Math.min(soon ? this.interval / 4 : this.interval, left));
    }
  }

  private async ask(session: Session, key: string, grant: string, queue: boolean, satOut?: string): Promise<Row> {
    const request = {
      key, grant_id: grant, uid: session.id, namespace: "program", name: this.name, reason: "asked for it", wait: queue,
      sat_out: satOut, // A text: the number could be too large for JSON in JavaScript.
      void_after: this.voidAfter(session).toString(),
    };
    const sql = "select * from leadergroup.acquire($1, $2, $3, $4)";
    const rows = await this.work.call(sql, session.id, JSON.stringify([request]), PATIENCE_MS, FORCE_MS);
    const answer = rows[0]!;
    this.watched = answer.holder_session ? [answer.holder_session] : [];
    return answer;
  }

  /** R5, R16: a grant counts only under the lease, and in the era of the last heartbeat. */
  private accept(session: Session, key: string, answer: Row): boolean {
    if (!this.hasLease(session)) return false;
    if (answer.era_id !== session.era) {
      this.work.drop();
      return false;
    }
    this.keys.set(key, { session, key, token: BigInt(answer.token) });
    return true;
  }

  /** For how much longer than asked a request lasts: a single try may have to observe something (R14). */
  private patienceFor(verdict: string, answer: Row | undefined, queue: boolean): number {
    if (answer === undefined || verdict === "granted") return this.ttlMs;
    if (queue) return 0;
    const [ttl, silence] = [Number(answer.holder_ttl_ms ?? 0), Number(answer.holder_silent_ms ?? 0)];
    if (verdict === "held") return ttl > 0 && silence > 2 * ttl ? ttl + 4 * this.interval : 0;
    if (verdict === "delayed") return Number(answer.delay_ms) + 4 * this.interval;
    if (verdict === "quarantine") return Math.max(this.quarantineMs, this.ttlMs) + 4 * this.interval;
    return this.ttlMs; // Soon, the answer will be another one.
  }

  /** R22: by then, a call that is sent now has taken effect or never will. */
  private voidAfter(session: Session): bigint {
    return session.beat + BigInt(Math.ceil(STATEMENT_TIMEOUT_MS / this.interval)) + 2n;
  }

  private async endRequest(session: Session, key: string, grant: string, voidAfter?: bigint): Promise<void> {
    await this.giveUp(session, key, grant);
    this.noteDoubt(session, key, grant, voidAfter);
  }

  private noteDoubt(session: Session, key: string, grant: string, voidAfter?: bigint, token?: Token): void {
    if (voidAfter !== undefined) this.doubts.push({ session, key, grant, voidAfter, token });
  }

  /** R22. If no answer comes, the session is closed instead: that ends all that it may have been granted. */
  private async giveUp(session: Session, key: string, grant: string): Promise<void> {
    for (let time = 0; time < 3; time++) {
      if (this.closed) return; // Closing the session replaces it.
      try {
        return await this.endGrant(this.work, session, key, grant);
      } catch {
        await this.sleep(this.interval);
      }
    }
    this.finish(session);
  }

  private async endGrant(on: Connection, session: Session, key: string, grant: string): Promise<void> {
    const rows = await on.call("select * from leadergroup.give_up($1, $2, $3)", session.id, key, grant);
    await this.wake(on, rows[0]!);
  }

  /**
   * Loses all keys of the session now. It is closed when others could have marked it dead, and not before: until then,
   * the program has time to stop (R4).
   */
  private finish(session: Session): void {
    if (session !== this.session) return; // It is dead, or was finished before.
    this.session = new Session();
    this.dropWhatIsLost();
    this.unused = this.unused.filter((term) => term.session !== session);
    this.finished.push(session);
  }

  /** Repeated by each heartbeat, until it is answered. */
  private async closeFinished(): Promise<void> {
    for (const session of this.finished.filter((session) => now() >= session.over)) {
      await this.beats.call("select leadergroup.close($1, false)", session.id);
      this.finished = this.finished.filter((other) => other !== session);
    }
  }

  /** R22: gives requests up again once no lost call can grant them the key any more. */
  private async endDoubts(): Promise<void> {
    for (const doubt of [...this.doubts]) {
      const { session, key, grant, token } = doubt;
      const over = session !== this.session;
      const ofTerm = (term: Term | undefined) => term !== undefined && term.key === key && term.token === token;
      const lasts = ofTerm(this.keys.get(key)) || this.unused.some(ofTerm);
      if (doubt.due === undefined && session.beat > doubt.voidAfter) doubt.due = now() + STATEMENT_TIMEOUT_MS;
      if (!over && (lasts || doubt.due === undefined || now() < doubt.due)) continue;
      if (!over) await this.endGrant(this.beats, session, key, grant);
      this.doubts = this.doubts.filter((other) => other !== doubt);
    }
  }

  /** R26 */
  private async wake(on: Connection, { next_session, next_grant }: Row): Promise<void> {
    if (next_session === null) return;
    // It is only a hint.
    await on.call("select leadergroup.wake($1, $2)", next_session, next_grant).catch(() => undefined);
  }

  /** Ends the work's term. False if it was lost before. */
  async release(key: string): Promise<boolean> {
    this.dropWhatIsLost();
    const term = this.keys.get(key);
    if (term === undefined) return false;
    this.keys.delete(key);
    for (;;) {
      try {
        await this.endTerm(this.work, term); // R25
        return true;
      } catch (error) {
        if (!isTemporary(error) || !this.hasLease(term.session)) {
          this.unused.push({ ...term, due: now() });
          return false;
        }
        await this.sleep(this.interval / 4);
      }
    }
  }

  private async endTerm(on: Connection, { session, key, token }: Term): Promise<void> {
    const releases = JSON.stringify([{ key, token: token.toString(), reason: "released" }]);
    const rows = await on.call("select * from leadergroup.release($1, $2)", session.id, releases);
    await this.wake(on, rows[0]!);
  }

  /** R25: with heartbeats, a term that is lost would keep the key from all others. */
  private async endUnusedTerms(): Promise<void> {
    for (const term of this.unused.filter((term) => now() >= term.due)) {
      await this.endTerm(this.beats, term);
      this.unused = this.unused.filter((other) => other !== term);
    }
  }

  /** Ends the session. Keys that were not released are lost before others can have them. */
  async close(): Promise<void> {
    if (this.closed) return;
    this.closed = true;
    for (const settle of [...this.sleepers]) settle();
    const [session, inOrder] = [this.session, this.hasLease(this.session)];
    this.session = new Session(); // Nothing renews the other one any more, and this one is never registered.
    this.dropWhatIsLost();
    await this.closeSession(session, inOrder);
    for (const finished of this.finished) await this.closeSession(finished, false);
    this.work.drop();
    this.beats.drop();
  }

  private async closeSession(session: Session, inOrder: boolean): Promise<void> {
    for (let time = 0; time < 3; time++) {
      try {
        await this.work.call("select leadergroup.close($1, $2)", session.id, inOrder);
        return;
      } catch {
        await this.sleep(this.interval / 4);
      }
    }
  }
}

/** The lines of ../../docs/conformance.md. */
async function main(): Promise<void> {
  const say = (...words: unknown[]) => process.stdout.write(`${words.join(" ")}\n`);
  let client: Client | undefined;
  const obey = async ([command, ...words]: string[]): Promise<string> => {
    if (command === "open" && words.length === 3) {
      const [url, name, ttlMs] = words as [string, string, string];
      client = await Client.open(url, name, Number(ttlMs), (key, token) => say("lost", key, token));
      return "ok";
    }
    if (client === undefined) throw new Error("no session is open");
    const key = words[0] ?? "";
    let token: Token | undefined;
    switch (command) {
      case "try":
        token = await client.tryLock(key);
        return token === undefined ? "refused" : `granted ${token}`;
      case "lock":
        token = await client.lock(key, Number(words[1]));
        return token === undefined ? "refused" : `granted ${token}`;
      case "held":
        token = client.held(key);
        return token === undefined ? "no" : `yes ${token}`;
      case "release":
        return (await client.release(key)) ? "released" : "no";
      case "close":
        await client.close();
        return "ok";
      default:
        throw new Error("unknown command");
    }
  };
  for await (const line of createInterface({ input: process.stdin })) {
    say(await obey(line.trim().split(/\s+/)).catch((error: Error) => `error ${error.message.replace(/\s+/g, " ")}`));
  }
  process.exit(0);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
