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
	"os"
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

var errTooNew = errors.New("the schema is too new for this client")

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
	era        string
}

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
}

// window is since when a state has not changed, as observed.
type window struct {
	beat  int64
	ttl   time.Duration
	since time.Duration
}

// Client has one session. Its heartbeats have a connection of their own.
type Client struct {
	name          string
	ttl, interval time.Duration
	onLost        func(key string, token int64)
	beats, work   *connection
	closing       chan struct{}

	mu         sync.Mutex // Guards everything below.
	session    *session
	keys       map[string]held
	unused     []unused
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
		session: &session{id: newUUID()}, keys: map[string]held{}, windows: map[string]window{}, // R7
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
	lost := c.keys[key]
	delete(c.keys, key)
	c.unused = append(c.unused, unused{lost.session, key, lost.token})
	if c.onLost != nil {
		c.onLost(key, lost.token) // R4
	}
}

func (c *Client) watchTheLease() {
	for c.sleep(c.ttl / 50) {
		c.mu.Lock()
		c.dropWhatIsLost()
		c.mu.Unlock()
	}
}

// The heartbeat.

func (c *Client) sendHeartbeats() {
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
		if err != nil && !isTemporary(err) {
			fmt.Fprintln(os.Stderr, "heartbeat:", err)
		}
	}
}

// seen is a row that `beat` answers.
type seen struct {
	id, era          *string
	beat, ttlMs      *int64
	dead, quarantine bool
	longestMs        *int64
	worksWith        int
}

func (c *Client) heartbeat() error {
	c.mu.Lock()
	s, watched := c.session, c.watched
	c.mu.Unlock()
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
		err := row.Scan(&r.id, &r.era, &r.beat, &r.ttlMs, &r.dead, &r.quarantine, &r.longestMs, &r.worksWith)
		rows[len(rows)-1] = r
		return err
	}, `select id::text, era_id::text, beat, ttl_ms, dead, quarantine, longest_ttl_ms, works_with
		from leadergroup.beat($1::text::uuid, string_to_array($2, ',')::uuid[])`, s.id, watched)
	if err != nil {
		return err
	}
	received, own := now(), rows[0]
	if own.worksWith > version {
		return errTooNew
	}
	if own.dead {
		c.mu.Lock()
		c.session = &session{id: newUUID()} // R8, R9
		c.dropWhatIsLost()
		c.mu.Unlock()
		return nil
	}
	if s.era != "" && s.era != *own.era {
		if err := c.compareWithTheTable(s); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.dropWhatIsLost()
	s.era, s.until = *own.era, sent+c.ttl-c.ttl/5
	c.mu.Unlock()
	return c.observe(sent, received, rows)
}

// compareWithTheTable follows R15, on the connection of the heartbeat. An error leaves the lease as it is.
func (c *Client) compareWithTheTable(s *session) error {
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
	for key, held := range c.keys {
		if err == nil && present[key] != held.token {
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
			sql := "select id from leadergroup.mark_dead(array[$1::text::uuid], array[$2::bigint])"
			err = c.beats.call(nothing, sql, name, w.beat)
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
	for {
		c.mu.Lock()
		failed, present := c.failed, c.session
		c.mu.Unlock()
		if failed != nil {
			return 0, failed
		}
		if own != present { // R9
			if own != nil {
				grant = newUUID()
			}
			own, satOut = present, nil
		}
		soon := true
		a, err := c.ask(own, key, grant, queue, satOut)
		switch {
		case err != nil && !isTemporary(err):
			return 0, err
		case err != nil:
			patience = max(patience, c.ttl)
		case a.verdict == "granted":
			if c.accept(own, key, a) {
				return *a.token, nil
			}
			patience = max(patience, c.ttl)
		case a.verdict == "tombstone" || a.verdict == "foreign" || a.verdict == "newer" || a.verdict == "full":
			c.giveUp(own, key, grant)
			return 0, nil
		case a.verdict == "delayed":
			if _, found := delays[*a.token]; !found { // R21: from the receipt of the first answer.
				delays[*a.token] = now() + time.Duration(*a.delayMs)*time.Millisecond
			}
			if now() >= delays[*a.token] {
				satOut = a.token
				continue
			}
			fallthrough
		default: // R23: an unknown verdict is like `busy`.
			patience = max(patience, c.patienceFor(a, queue))
			soon = a.verdict != "waiting" && a.verdict != "held" && a.verdict != "delayed" && a.verdict != "quarantine"
		}
		left := end + patience - now()
		if left <= 0 {
			c.giveUp(own, key, grant)
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
		"wait": queue, "sat_out": satOut,
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

// giveUp follows R22. If no answer comes, the session is closed instead: that ends all that it may have been granted.
func (c *Client) giveUp(s *session, key, grant string) {
	for range 3 {
		sql := `select next_session::text, next_grant::text
			from leadergroup.give_up($1::text::uuid, $2, $3::text::uuid)`
		if c.ending(c.work, sql, s.id, key, grant) == nil {
			return
		}
		c.sleep(c.interval)
	}
	c.mu.Lock()
	s.until = 0
	c.mu.Unlock()
	c.closeSession(s, false)
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
		err := c.endTerm(c.work, unused{term.session, key, term.token}) // R25
		if err == nil {
			return true
		}
		c.mu.Lock()
		leased := c.hasLease(term.session)
		if !leased || !isTemporary(err) {
			c.unused = append(c.unused, unused{term.session, key, term.token})
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
	for {
		c.mu.Lock()
		if len(c.unused) == 0 {
			c.mu.Unlock()
			return nil
		}
		term := c.unused[0]
		c.mu.Unlock()
		if err := c.endTerm(c.beats, term); err != nil {
			return err
		}
		c.mu.Lock()
		c.unused = c.unused[1:]
		c.mu.Unlock()
	}
}

// Close ends the session.
func (c *Client) Close() {
	c.mu.Lock()
	s, inOrder := c.session, c.hasLease(c.session)
	c.mu.Unlock()
	c.closeSession(s, inOrder)
	close(c.closing)
	c.work.drop()
	c.beats.drop()
}

func (c *Client) closeSession(s *session, inOrder bool) {
	for range 3 {
		if c.work.call(nothing, "select leadergroup.close($1::text::uuid, $2)", s.id, inOrder) == nil {
			return
		}
		c.sleep(c.interval / 4)
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
