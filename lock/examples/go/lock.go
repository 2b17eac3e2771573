// A client of the lock in PostgreSQL, made to be copied.
//
// It keeps to the rules of ../../docs/sql-protocol.md; R1, R2 and so on name them. Use it like this:
//
//	client, err := Open("postgres://app@db.example/app", "worker-1", 5*time.Second, nil)
//	token, err := client.Lock("nightly-report", time.Minute)
//	if token != 0 {
//		for workIsLeft() && client.Held("nightly-report") != 0 {
//			doAStep(token) // Pass the token to every store that is written to.
//		}
//		client.Release("nightly-report")
//	}
//	client.Close()
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"
)

const (
	version          = 6 // Of the schema that this client was written for.
	patienceMs       = 200
	forceMs          = 100
	statementTimeout = 2 * time.Second
)

// now cannot be set, and runs while the machine is suspended (R2).
func now() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &at); err != nil {
		panic(err) // Every Linux has this clock.
	}
	return time.Duration(at.Nano())
}

func newUUID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

var (
	errTooNew = errors.New("the schema is too new for this client")
	errClosed = errors.New("the client was closed")
)

// connection runs one call a transaction, and connects again after each failure.
type connection struct {
	url string
	mu  sync.Mutex
	db  *pgx.Conn
}

// call runs a statement, and passes each row to scan.
func (c *connection) call(scan func(pgx.Rows) error, sql string, arguments ...any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*statementTimeout)
	defer cancel()
	err := c.run(ctx, scan, sql, arguments)
	if err != nil && c.db != nil {
		c.db.Close(ctx) // R31: what was sent may still take effect, and its answer may come late.
		c.db = nil
	}
	return err
}

func (c *connection) run(ctx context.Context, scan func(pgx.Rows) error, sql string, arguments []any) error {
	if c.db == nil {
		config, err := pgx.ParseConfig(c.url)
		if err != nil {
			return err
		}
		config.ConnectTimeout = statementTimeout
		config.RuntimeParams["statement_timeout"] = strconv.FormatInt(statementTimeout.Milliseconds(), 10) // R28
		config.RuntimeParams["synchronous_commit"] = "local"                                               // R29
		if c.db, err = pgx.ConnectConfig(ctx, config); err != nil {
			return err
		}
	}
	rows, err := c.db.Query(ctx, sql, arguments...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (c *connection) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.db != nil {
		c.db.Close(context.Background())
		c.db = nil
	}
}

func nothing(pgx.Rows) error { return nil }

// isTemporary says whether to repeat the call (R30).
func isTemporary(err error) bool {
	var failure *pgconn.PgError
	if !errors.As(err, &failure) {
		return true
	}
	class := failure.Code[:2]
	return strings.Contains("08 40 53 55 57 58", class) || failure.Code == "25006"
}

// session is what is known of the own session. It never lives again: after its death there is another one.
type session struct {
	id         string
	registered bool
	until      time.Duration // The end of the lease.
	over       time.Duration // When others may mark it dead, at the earliest.
	beat       int64
	era        string
	revoked    int64
	compared   bool // Whether the held keys have been compared with the table in this era.
}

func newSession() *session { return &session{id: newUUID(), compared: true} } // R7

// held is a key that a session has been granted.
type held struct {
	session *session
	token   int64
}

// unused is a term that is lost, but that the table may still have.
type unused struct {
	session *session
	key     string
	token   int64
	due     time.Duration // Until then, the program has time to stop.
}

// lost is what the program has to be told.
type lost struct {
	key   string
	token int64
}

// doubt is a request of which a call was lost. It may still be granted the key, until it is void (R22).
type doubt struct {
	session    *session
	key, grant string
	voidAfter  int64
	token      int64
	due        time.Duration // When no call can take effect any more, if not 0.
}

// window is since when a state has not changed, as observed.
type window struct {
	beat  int64
	ttl   time.Duration
	since time.Duration
}

// Client has one session. Its heartbeats have a connection of their own. onLost is called in a goroutine of its own, or
// by Close. It may call the client. It should return soon: losses of other keys are told one after the other.
type Client struct {
	name          string
	ttl, interval time.Duration
	onLost        func(key string, token int64)
	beats, work   *connection
	closing       chan struct{}
	lostCommits   string // The era in which commits were lost, until another one has begun. Of the heartbeat.

	mu         sync.Mutex // Guards everything below.
	session    *session
	keys       map[string]held
	unused     []unused
	untold     []lost
	finished   []*session // They are never renewed again, and have to be closed.
	doubts     []*doubt
	closed     bool
	watched    string
	windows    map[string]window
	windowsEra string
	answered   time.Duration
	quarantine time.Duration
	failed     error
}

// Open registers a session and begins to send heartbeats.
func Open(url, name string, ttl time.Duration, onLost func(key string, token int64)) (*Client, error) {
	c := &Client{
		name: name, ttl: ttl, interval: ttl / 5, onLost: onLost, // R6
		beats: &connection{url: url}, work: &connection{url: url}, closing: make(chan struct{}),
		session: newSession(), keys: map[string]held{}, windows: map[string]window{},
	}
	if err := c.heartbeat(); err != nil {
		return nil, err
	}
	go c.sendHeartbeats()
	go c.watchTheLease()
	return c, nil
}

// sleep returns false if the client is being closed.
func (c *Client) sleep(duration time.Duration) bool {
	select {
	case <-time.After(duration):
		return true
	case <-c.closing:
		return false
	}
}

// The lease.

func (c *Client) hasLease(s *session) bool { return s == c.session && now() < s.until } // R1

// Held returns the token if no one else can have the key now, else 0. Call it before each step of the work.
func (c *Client) Held(key string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropWhatIsLost()
	return c.keys[key].token
}

// dropWhatIsLost: what the lease does not cover any more is lost, whatever the next heartbeat says (R3).
func (c *Client) dropWhatIsLost() {
	for key, held := range c.keys {
		if !c.hasLease(held.session) {
			c.lose(key)
		}
	}
}

func (c *Client) lose(key string) {
	term := c.keys[key]
	delete(c.keys, key)
	c.unused = append(c.unused, unused{term.session, key, term.token, term.session.over})
	c.untold = append(c.untold, lost{key, term.token})
}

// tell follows R4, without the mutex: the program may call Held, or wait for a goroutine of its own that does.
func (c *Client) tell() {
	for {
		c.mu.Lock()
		if len(c.untold) == 0 {
			c.mu.Unlock()
			return
		}
		next := c.untold[0]
		c.untold = c.untold[1:]
		c.mu.Unlock()
		if c.onLost != nil {
			c.onLost(next.key, next.token)
		}
	}
}

func (c *Client) watchTheLease() {
	for c.sleep(c.ttl / 50) {
		c.mu.Lock()
		c.dropWhatIsLost()
		c.mu.Unlock()
		c.tell()
	}
}

// The heartbeat.

func (c *Client) sendHeartbeats() {
	defer c.beats.drop()
	for c.sleep(c.interval) {
		err := c.heartbeat()
		if errors.Is(err, errTooNew) {
			c.mu.Lock()
			c.failed, c.session.until = err, 0 // R33: it keeps nothing, and takes nothing any more.
			c.dropWhatIsLost()
			c.mu.Unlock()
			return
		}
		if err == nil {
			err = c.endUnusedTerms()
		}
		if err == nil {
			err = c.endDoubts()
		}
		if err == nil {
			err = c.closeFinished()
		}
		if err != nil && !isTemporary(err) {
			fmt.Fprintln(os.Stderr, "heartbeat:", err)
		}
	}
}

// seen is a row that `beat` answers.
type seen struct {
	id, era          *string
	beat, ttlMs      *int64
	revoked          *int64
	dead, quarantine bool
	longestMs        *int64
	worksWith        int
}

func (c *Client) heartbeat() error {
	c.mu.Lock()
	s, watched, closed := c.session, c.watched, c.closed
	c.mu.Unlock()
	if closed {
		return nil
	}
	if !s.registered {
		sql := "select leadergroup.register($1::text::uuid, $2, $3)"
		if err := c.beats.call(nothing, sql, s.id, c.name, c.ttl.Milliseconds()); err != nil {
			return err
		}
		s.registered = true
	}
	var rows []seen
	sent := now()
	err := c.beats.call(func(row pgx.Rows) error {
		var r seen
		rows = append(rows, seen{})
		err := row.Scan(&r.id, &r.era, &r.beat, &r.ttlMs, &r.revoked, &r.dead, &r.quarantine, &r.longestMs, &r.worksWith)
		rows[len(rows)-1] = r
		return err
	}, `select id::text, era_id::text, beat, ttl_ms, revoked, dead, quarantine, longest_ttl_ms, works_with
		from leadergroup.beat($1::text::uuid, string_to_array($2, ',')::uuid[])`, s.id, watched)
	if err != nil {
		return err
	}
	received, own := now(), rows[0]
	if own.worksWith > version {
		return errTooNew
	}
	c.mu.Lock()
	if c.showsLostCommits(s, own) {
		c.lostCommits = *own.era
	}
	if own.dead && s == c.session {
		c.session = newSession() // R8, R9
		c.dropWhatIsLost()
	}
	c.mu.Unlock()
	if c.lostCommits == *own.era {
		// R34. This answer renews nothing. If the call fails, the next heartbeat repeats it.
		err := c.beats.call(nothing, "select leadergroup.commits_were_lost($1::text::uuid)", *own.era)
		if err == nil {
			c.lostCommits = ""
		}
		return err
	}
	if own.dead {
		return nil
	}
	c.mu.Lock()
	// First, so that a grant of the era before whose answer is still to come does not count (R16).
	if s.era != "" && s.era != *own.era || s.revoked != *own.revoked {
		s.compared = false
	}
	s.beat, s.era, s.revoked = *own.beat, *own.era, *own.revoked
	compared := s.compared
	c.mu.Unlock()
	if !compared {
		if err := c.compareWithTheTable(s); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.dropWhatIsLost()
	s.compared, s.until, s.over = true, sent+c.ttl-c.ttl/5, sent+c.ttl
	c.mu.Unlock()
	return c.observe(sent, received, rows)
}

// showsLostCommits follows R34: a heartbeat counts itself. A session that is unknown has no count.
func (c *Client) showsLostCommits(s *session, own seen) bool {
	if s.era != *own.era {
		return false
	}
	if own.id == nil {
		return c.hasLease(s)
	}
	return own.dead && *own.beat < s.beat || !own.dead && *own.beat <= s.beat
}

// compareWithTheTable follows R15, on the connection of the heartbeat. An error leaves the lease as it is.
func (c *Client) compareWithTheTable(s *session) error {
	c.mu.Lock()
	listed := maps.Clone(c.keys)
	c.mu.Unlock()
	present := map[string]int64{}
	err := c.beats.call(func(row pgx.Rows) error {
		var key string
		var token int64
		err := row.Scan(&key, &token)
		present[key] = token
		return err
	}, "select key, token from leadergroup.lock where session = $1::text::uuid and holder_uid is not null", s.id)
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, held := range listed {
		if err == nil && c.keys[key] == held && present[key] != held.token {
			c.lose(key)
		}
	}
	return err
}

// The observation of others.

func (c *Client) observe(sent, received time.Duration, rows []seen) error {
	own := rows[0]
	c.mu.Lock()
	restart := received-c.answered > c.interval*5/2 || *own.era != c.windowsEra // R11, R12
	before := c.windows
	c.windows, c.windowsEra, c.answered, c.quarantine = map[string]window{}, *own.era, received, 0
	keep := func(name string, beat, ttlMs int64) {
		state := window{beat, time.Duration(ttlMs) * time.Millisecond, received}
		if old, found := before[name]; found && !restart && old.beat == state.beat && old.ttl == state.ttl {
			state.since = old.since
		}
		c.windows[name] = state
	}
	for _, other := range rows[1:] {
		if !other.dead {
			keep(*other.id, *other.beat, *other.ttlMs)
		}
	}
	if own.quarantine && own.longestMs != nil {
		keep("quarantine", 0, *own.longestMs)
		c.quarantine = time.Duration(*own.longestMs) * time.Millisecond
	}
	windows := c.windows
	c.mu.Unlock()
	for name, w := range windows {
		if sent-w.since < w.ttl {
			continue
		}
		var err error
		if name == "quarantine" { // R17, R18
			err = c.beats.call(nothing, "select leadergroup.end_quarantine($1::text::uuid)", *own.era)
		} else { // R10, R13
			sql := "select id from leadergroup.mark_dead(array[$1::text::uuid], array[$2::bigint], $3::text::uuid)"
			err = c.beats.call(nothing, sql, name, w.beat, *own.era)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Keys.

// TryLock returns the token, or 0. It takes longer if a silent holder, a delay or a quarantine has to be waited out
// (R14).
func (c *Client) TryLock(key string) (int64, error) { return c.request(key, 0, false) }

// Lock waits in the queue. It returns the token, or 0 if the wait is over.
func (c *Client) Lock(key string, wait time.Duration) (int64, error) {
	return c.request(key, wait, true)
}

// answer is what `acquire` answers.
type answer struct {
	verdict              string
	token, delayMs       *int64
	holder, era          *string
	holderTTLMs, silence *int64
}

func (c *Client) request(key string, wait time.Duration, queue bool) (int64, error) {
	end, grant := now()+wait, newUUID() // R19
	var own *session
	var satOut *int64
	var patience time.Duration
	delays := map[int64]time.Duration{}
	var asked bool
	var voidAfter int64
	for {
		c.mu.Lock()
		failed, present, closed := c.failed, c.session, c.closed
		c.mu.Unlock()
		if failed != nil {
			return 0, failed
		}
		if closed {
			return 0, errClosed
		}
		if own != present { // R9
			if own != nil {
				grant = newUUID()
			}
			own, satOut, asked, voidAfter = present, nil, false, 0
		}
		soon := true
		a, err := c.ask(own, key, grant, queue, satOut)
		switch {
		case err != nil && !isTemporary(err):
			if asked {
				c.endRequest(own, key, grant, voidAfter)
			}
			return 0, err
		case err != nil:
			patience, voidAfter = max(patience, c.ttl), c.voidAfter(own)
		case a.verdict == "granted":
			if c.accept(own, key, a) {
				c.noteDoubt(own, key, grant, voidAfter, *a.token)
				return *a.token, nil
			}
			patience = max(patience, c.ttl)
		case a.verdict == "tombstone" || a.verdict == "foreign" || a.verdict == "newer" || a.verdict == "full":
			c.endRequest(own, key, grant, voidAfter)
			return 0, nil
		case a.verdict == "delayed":
			if _, found := delays[*a.token]; !found { // R21: from the receipt of the first answer.
				delays[*a.token] = now() + time.Duration(*a.delayMs)*time.Millisecond
			}
			if now() >= delays[*a.token] {
				satOut, asked = a.token, true
				continue
			}
			fallthrough
		default: // R23: an unknown verdict is like `busy`.
			patience = max(patience, c.patienceFor(a, queue))
			soon = a.verdict != "waiting" && a.verdict != "held" && a.verdict != "delayed" && a.verdict != "quarantine"
		}
		asked = true
		left := end + patience - now()
		if left <= 0 {
			c.endRequest(own, key, grant, voidAfter)
			return 0, nil
		}
		pause := c.interval // R20
		if soon {
			pause /= 4
		}
		c.sleep(min(pause, left))
	}
}

func (c *Client) ask(s *session, key, grant string, queue bool, satOut *int64) (answer, error) {
	requests, err := json.Marshal([]map[string]any{{
		"key": key, "grant_id": grant, "uid": s.id, "namespace": "program", "name": c.name, "reason": "asked for it",
		"wait": queue, "sat_out": satOut, "void_after": c.voidAfter(s),
	}})
	if err != nil {
		return answer{}, err
	}
	var a answer
	err = c.work.call(func(row pgx.Rows) error {
		return row.Scan(&a.verdict, &a.token, &a.delayMs, &a.holder, &a.era, &a.holderTTLMs, &a.silence)
	}, `select verdict, token, delay_ms, holder_session::text, era_id::text, holder_ttl_ms, holder_silent_ms
		from leadergroup.acquire($1::text::uuid, $2::text::jsonb, $3, $4)`, s.id, string(requests), patienceMs, forceMs)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watched = ""
	if a.holder != nil {
		c.watched = *a.holder
	}
	return a, err
}

// accept: a grant counts only under the lease, and in the era of the last heartbeat (R5, R16).
func (c *Client) accept(s *session, key string, a answer) bool {
	c.mu.Lock()
	leased := c.hasLease(s)
	accepted := leased && a.era != nil && *a.era == s.era
	if accepted {
		c.keys[key] = held{s, *a.token}
	}
	c.mu.Unlock()
	if leased && !accepted {
		c.work.drop()
	}
	return accepted
}

// patienceFor returns for how much longer than asked a single try lasts, since it has to observe something (R14).
func (c *Client) patienceFor(a answer, queue bool) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	millis := func(ms *int64) time.Duration { return time.Duration(*ms) * time.Millisecond }
	switch {
	case queue:
		return 0
	case a.verdict == "held" && a.holderTTLMs != nil && a.silence != nil && *a.silence > 2**a.holderTTLMs:
		return millis(a.holderTTLMs) + 4*c.interval
	case a.verdict == "held":
		return 0
	case a.verdict == "delayed":
		return millis(a.delayMs) + 4*c.interval
	case a.verdict == "quarantine":
		return max(c.quarantine, c.ttl) + 4*c.interval
	}
	return c.ttl // Soon, the answer will be another one.
}

// voidAfter returns the heartbeat by which a call that is sent now has taken effect or never will (R22).
func (c *Client) voidAfter(s *session) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.beat + int64((statementTimeout+c.interval-1)/c.interval) + 2
}

func (c *Client) endRequest(s *session, key, grant string, voidAfter int64) {
	c.giveUp(s, key, grant)
	c.noteDoubt(s, key, grant, voidAfter, 0)
}

// noteDoubt remembers a request of which a call was lost, if voidAfter is not 0.
func (c *Client) noteDoubt(s *session, key, grant string, voidAfter, token int64) {
	if voidAfter != 0 {
		c.mu.Lock()
		c.doubts = append(c.doubts, &doubt{session: s, key: key, grant: grant, voidAfter: voidAfter, token: token})
		c.mu.Unlock()
	}
}

const givingUp = `select next_session::text, next_grant::text
	from leadergroup.give_up($1::text::uuid, $2, $3::text::uuid)`

// giveUp follows R22. If no answer comes, the session is closed instead: that ends all that it may have been granted.
func (c *Client) giveUp(s *session, key, grant string) {
	for range 3 {
		if c.ending(c.work, givingUp, s.id, key, grant) == nil {
			return
		}
		if !c.sleep(c.interval) {
			return // Closing the session replaces it.
		}
	}
	c.finish(s)
}

// finish loses all keys of the session now. It is closed when others could have marked it dead, and not before: until
// then, the program has time to stop (R4).
func (c *Client) finish(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s != c.session {
		return // It is dead, or was finished before.
	}
	c.session = newSession()
	c.dropWhatIsLost()
	c.unused = slices.DeleteFunc(c.unused, func(term unused) bool { return term.session == s })
	c.finished = append(c.finished, s)
}

// closeFinished is repeated by each heartbeat, until it is answered.
func (c *Client) closeFinished() error {
	c.mu.Lock()
	due := slices.DeleteFunc(slices.Clone(c.finished), func(s *session) bool { return now() < s.over })
	c.mu.Unlock()
	for _, s := range due {
		if err := c.beats.call(nothing, "select leadergroup.close($1::text::uuid, false)", s.id); err != nil {
			return err
		}
		c.mu.Lock()
		c.finished = slices.DeleteFunc(c.finished, func(other *session) bool { return other == s })
		c.mu.Unlock()
	}
	return nil
}

// endDoubts gives requests up again once no lost call can grant them the key any more (R22).
func (c *Client) endDoubts() error {
	c.mu.Lock()
	doubts := slices.Clone(c.doubts)
	c.mu.Unlock()
	for _, d := range doubts {
		c.mu.Lock()
		over := d.session != c.session
		lasts := d.token != 0 && c.keys[d.key].token == d.token ||
			slices.ContainsFunc(c.unused, func(term unused) bool { return term.key == d.key && term.token == d.token })
		if d.due == 0 && d.session.beat > d.voidAfter {
			d.due = now() + statementTimeout
		}
		c.mu.Unlock()
		if !over && (lasts || d.due == 0 || now() < d.due) {
			continue
		}
		if !over {
			if err := c.ending(c.beats, givingUp, d.session.id, d.key, d.grant); err != nil {
				return err
			}
		}
		c.mu.Lock()
		c.doubts = slices.DeleteFunc(c.doubts, func(other *doubt) bool { return other == d })
		c.mu.Unlock()
	}
	return nil
}

// ending runs a call that may name the next holder, and wakes that (R26).
func (c *Client) ending(on *connection, sql string, arguments ...any) error {
	var next, grant *string
	err := on.call(func(row pgx.Rows) error { return row.Scan(&next, &grant) }, sql, arguments...)
	if err == nil && next != nil {
		// It is only a hint.
		_ = on.call(nothing, "select leadergroup.wake($1::text::uuid, $2::text::uuid)", *next, *grant)
	}
	return err
}

// Release ends the work's term. False if it was lost before.
func (c *Client) Release(key string) bool {
	c.mu.Lock()
	c.dropWhatIsLost()
	term, found := c.keys[key]
	delete(c.keys, key)
	c.mu.Unlock()
	for found {
		err := c.endTerm(c.work, unused{term.session, key, term.token, 0}) // R25
		if err == nil {
			return true
		}
		c.mu.Lock()
		leased := c.hasLease(term.session)
		if !leased || !isTemporary(err) {
			c.unused = append(c.unused, unused{term.session, key, term.token, now()})
			c.mu.Unlock()
			return false
		}
		c.mu.Unlock()
		c.sleep(c.interval / 4)
	}
	return false
}

func (c *Client) endTerm(on *connection, term unused) error {
	release, err := json.Marshal([]map[string]any{{"key": term.key, "token": term.token, "reason": "released"}})
	if err != nil {
		return err
	}
	sql := "select next_session::text, next_grant::text from leadergroup.release($1::text::uuid, $2::text::jsonb)"
	return c.ending(on, sql, term.session.id, string(release))
}

// endUnusedTerms: with heartbeats, a term that is lost would keep the key from all others (R25).
func (c *Client) endUnusedTerms() error {
	c.mu.Lock()
	due := slices.DeleteFunc(slices.Clone(c.unused), func(term unused) bool { return now() < term.due })
	c.mu.Unlock()
	for _, term := range due {
		if err := c.endTerm(c.beats, term); err != nil {
			return err
		}
		c.mu.Lock()
		c.unused = slices.DeleteFunc(c.unused, func(other unused) bool { return other == term })
		c.mu.Unlock()
	}
	return nil
}

// Close ends the session. Keys that were not released are lost before others can have them.
func (c *Client) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	close(c.closing)
	s, inOrder, finished := c.session, c.hasLease(c.session), c.finished
	c.session = newSession() // Nothing renews the other one any more, and this one is never registered.
	c.dropWhatIsLost()
	c.mu.Unlock()
	c.tell()
	c.closeSession(s, inOrder)
	for _, s := range finished {
		c.closeSession(s, false)
	}
	c.work.drop()
}

func (c *Client) closeSession(s *session, inOrder bool) {
	for range 3 {
		if c.work.call(nothing, "select leadergroup.close($1::text::uuid, $2)", s.id, inOrder) == nil {
			return
		}
		time.Sleep(c.interval / 4)
	}
}

// obey carries out a line of ../../docs/conformance.md.
func obey(client **Client, say func(...any), words []string) error {
	granted := func(token int64, err error) error {
		if err == nil && token == 0 {
			say("refused")
		} else if err == nil {
			say("granted", token)
		}
		return err
	}
	switch {
	case len(words) == 4 && words[0] == "open":
		ttl, err := strconv.Atoi(words[3])
		if err != nil {
			return err
		}
		onLost := func(key string, token int64) { say("lost", key, token) }
		if *client, err = Open(words[1], words[2], time.Duration(ttl)*time.Millisecond, onLost); err != nil {
			return err
		}
		say("ok")
	case *client == nil:
		return errors.New("no session is open")
	case len(words) == 2 && words[0] == "try":
		return granted((*client).TryLock(words[1]))
	case len(words) == 3 && words[0] == "lock":
		wait, err := strconv.Atoi(words[2])
		if err != nil {
			return err
		}
		return granted((*client).Lock(words[1], time.Duration(wait)*time.Millisecond))
	case len(words) == 2 && words[0] == "held":
		if token := (*client).Held(words[1]); token != 0 {
			say("yes", token)
		} else {
			say("no")
		}
	case len(words) == 2 && words[0] == "release":
		if (*client).Release(words[1]) {
			say("released")
		} else {
			say("no")
		}
	case len(words) == 1 && words[0] == "close":
		(*client).Close()
		*client = nil
		say("ok")
	default:
		return errors.New("unknown command")
	}
	return nil
}

func main() {
	var output sync.Mutex
	say := func(words ...any) {
		output.Lock()
		defer output.Unlock()
		fmt.Println(words...)
	}
	var client *Client
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := obey(&client, say, strings.Fields(lines.Text())); err != nil {
			say("error", strings.ReplaceAll(err.Error(), "\n", " "))
		}
	}
}
