package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A kind is what a step does.
type kind string

const (
	grant   kind = "grant"   // A client gets the key.
	hold    kind = "hold"    // A client says that it holds the key.
	write   kind = "write"   // The fence accepts a token.
	release kind = "release" // A client gives the key back.
	end     kind = "end"     // A client may no longer rely on the key: its lease is over, or it is gone.
)

// A step is an operation that had an effect, or that shows the state. Others, such as refusals, show nothing: a request
// may be refused for many reasons.
type step struct {
	kind   kind
	client int
	token  int64
}

func (s step) String() string { return fmt.Sprintf("client %d: %s %d", s.client, s.kind, s.token) }

// The state of a key is that of its last term.
type state struct {
	token    int64
	client   int
	held     bool // The client may rely on it.
	released bool // The client has given it back.
}

// lock is a lock with fencing tokens.
var lock = porcupine.Model{
	Init: func() any { return state{client: -1} },
	Step: func(now, do, _ any) (bool, any) { return next(now.(state), do.(step)) },
}

// next returns whether a step is possible in a state, and the state after it.
func next(now state, do step) (bool, state) {
	own := now.token == do.token && now.client == do.client
	switch do.kind {
	case grant: // Nobody relies on the key, and the token is new.
		return !now.held && do.token > now.token, state{do.token, do.client, true, false}
	case hold:
		return own && now.held, now
	case write: // The lease may be over.
		return own && !now.released, now
	case release: // The lease may be over, but no other term has begun.
		return own && !now.released, state{now.token, now.client, false, true}
	case end:
		return own, state{now.token, now.client, false, now.released}
	}
	return false, now
}

// A term is a client's time with a key. Unless it is released, it ends at a time between two bounds.
type term struct {
	step
	begins   int64 // When the key was asked for.
	used     int64 // When the client was asked for the last time and still held the key.
	from, to int64
	released bool
}

// terms are those of a key, in the order in which they were asked for.
type terms []*term

// last returns a client's last term, or one without a token.
func (ts terms) last(client int) *term {
	for _, t := range slices.Backward(ts) {
		if t.client == client {
			return t
		}
	}
	return &term{}
}

// find returns the term with this token.
func (ts terms) find(client int, token int64) *term {
	place := slices.IndexFunc(ts, func(t *term) bool { return t.client == client && t.token == token })
	if place < 0 {
		return &term{}
	}
	return ts[place]
}

// stepsOf translates the records of a key. For at least the margin, a client that relies on the key is not replaced,
// unless it says that it has lost the key.
func stepsOf(records []record, margin time.Duration) []porcupine.Operation {
	var steps []porcupine.Operation
	var terms terms
	lost := map[int]bool{} // Clients with a request whose outcome nothing shows.
	add := func(kind kind, client int, token, from, to int64) {
		input := step{kind, client, token}
		steps = append(steps, porcupine.Operation{ClientId: client, Input: input, Call: from, Return: to})
	}
	for place, r := range records {
		t := terms.last(r.Client)
		switch r.Operation + " " + r.Outcome {
		case "try unknown", "lock unknown":
			use := firstUse(records[place+1:], terms, r.Client)
			if use == nil {
				lost[r.Client] = true
				continue
			}
			r.Token = use.Token
			fallthrough
		case "try granted", "lock granted":
			add(grant, r.Client, r.Token, r.Invoke, r.until())
			own := step{end, r.Client, r.Token}
			terms = append(terms, &term{own, r.Invoke, r.Invoke, forever, forever, false})
		case "held yes":
			add(hold, r.Client, r.Token, r.Invoke, r.until())
			terms.find(r.Client, r.Token).used = r.Invoke
		case "write ok":
			add(write, r.Client, r.Token, r.Invoke, r.until())
		case "release released":
			if (t.token == 0 || t.released) && lost[r.Client] {
				continue
			}
			add(release, r.Client, t.token, r.Invoke, r.until())
			t.released = true
		case "release unknown", "close unknown":
			t.from = min(t.from, r.Invoke)
		case "held no", "release no", "close ok": // At the latest then the client knew that it had lost the key.
			t.from, t.to = t.begins, min(t.to, r.until())
		case "lost lost":
			t = terms.find(r.Client, r.Token)
			t.from, t.to = min(t.begins, r.Invoke), min(t.to, r.until())
		}
	}
	for _, t := range terms {
		t.from = min(t.from, t.used+margin.Nanoseconds())
		if !t.released {
			add(end, t.client, t.token, t.from, t.to)
		}
	}
	return steps
}

// firstUse returns the client's first answer with a token of which no grant is known: it shows that a request without
// an answer took effect.
func firstUse(records []record, known terms, client int) *record {
	for place, r := range records {
		names := r.Outcome == "yes" || r.Outcome == "lost" || r.Operation == "write" && r.Outcome == "ok"
		switch {
		case r.Client != client:
		case r.Outcome == "granted":
			return nil
		case names && known.find(client, r.Token).token == 0:
			return &records[place]
		}
	}
	return nil
}
