// Command linearizable checks histories that `leadergroup lock conform --history FILE` has written: whether all that
// the clients saw of a key can have happened in one order that agrees with the times. Porcupine searches for the order.
// Neither the lock's tables nor the record that the rules are checked with are used.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// limit is how long the check of one key may take.
const limit = time.Minute

// forever is later than all times.
const forever = math.MaxInt64

// A record is a line of a history.
type record struct {
	Run       string `json:"run"`
	Client    int    `json:"client"`
	Operation string `json:"operation"`
	Key       string `json:"key,omitempty"`
	Invoke    int64  `json:"invoke"`
	Return    *int64 `json:"return,omitempty"`
	Outcome   string `json:"outcome"`
	Token     int64  `json:"token,omitempty"`
	TTL       int64  `json:"ttl_ms,omitempty"`
}

// until is when the operation had taken effect at the latest. Without an answer that may be at any time.
func (r record) until() int64 {
	if r.Return == nil {
		return forever
	}
	return *r.Return
}

// A history is all that is known of a key in a run, ordered by the times of the questions.
type history struct {
	run, key string
	records  []record
}

// read returns the histories of a file, and the ttl of each run.
func read(from io.Reader) ([]*history, map[string]time.Duration, error) {
	var records, closes []record
	ttls, lines := map[string]time.Duration{}, bufio.NewScanner(from)
	for number := 1; lines.Scan(); number++ {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", number, err)
		}
		switch r.Operation {
		case "open":
			ttls[r.Run] = max(ttls[r.Run], time.Duration(r.TTL)*time.Millisecond)
		case "close":
			closes = append(closes, r)
		default:
			records = append(records, r)
		}
	}
	var all []*history
	for _, r := range records {
		place := slices.IndexFunc(all, func(h *history) bool { return h.run == r.Run && h.key == r.Key })
		if place < 0 {
			place, all = len(all), append(all, &history{run: r.Run, key: r.Key})
		}
		all[place].records = append(all[place].records, r)
	}
	for _, h := range all {
		for _, r := range closes { // They are about all keys.
			if r.Run == h.run {
				h.records = append(h.records, r)
			}
		}
		slices.SortStableFunc(h.records, func(a, b record) int { return cmp.Compare(a.Invoke, b.Invoke) })
	}
	return all, ttls, lines.Err()
}

// A summary says how much was checked.
type summary struct{ runs, keys, operations, grants, steps int }

func (s summary) String() string {
	return fmt.Sprintf("%d operations on %d keys in %d runs; %d grants; %d steps were ordered",
		s.operations, s.keys, s.runs, s.grants, s.steps)
}

func (s summary) plus(o summary) summary {
	return summary{s.runs + o.runs, s.keys + o.keys, s.operations + o.operations, s.grants + o.grants, s.steps + o.steps}
}

// check checks all keys in a file.
func check(from io.Reader) (summary, error) {
	histories, ttls, err := read(from)
	if err != nil {
		return summary{}, err
	}
	done := summary{runs: len(ttls)}
	for _, h := range histories {
		// A client stops to rely on a key a fifth of the ttl before others may mark its session dead.
		steps := stepsOf(h.records, ttls[h.run]/5)
		done = done.plus(summary{keys: 1, operations: len(h.records), steps: len(steps)})
		result, info := porcupine.CheckOperationsVerbose(lock, steps, limit)
		switch result {
		case porcupine.Illegal:
			err = errors.Join(err, fmt.Errorf("run %s, key %s: %s", h.run, h.key, culprit(steps, info)))
		case porcupine.Unknown:
			err = errors.Join(err, fmt.Errorf("run %s, key %s: no result within %v", h.run, h.key, limit))
		}
		for _, s := range steps {
			if s.Input.(step).kind == grant {
				done.grants++
			}
		}
	}
	if done.grants == 0 {
		err = errors.Join(err, errors.New("no key was granted: this is not a history of a lock"))
	}
	return done, err
}

// culprit describes the first step that the longest order found has no place for.
func culprit(steps []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []int
	for _, order := range info.PartialLinearizations()[0] {
		if len(order) > len(longest) {
			longest = order
		}
	}
	first, last := porcupine.Operation{Return: forever}, "nothing"
	for place, s := range steps {
		if !slices.Contains(longest, place) && s.Return <= first.Return {
			first = s
		}
	}
	if len(longest) > 0 {
		last = fmt.Sprint(steps[longest[len(longest)-1]].Input)
	}
	return fmt.Sprintf("no place for `%v` between %.3f s and %.3f s, after `%s`", first.Input,
		time.Duration(first.Call).Seconds(), time.Duration(first.Return).Seconds(), last)
}

func main() {
	began, failed, total := time.Now(), len(os.Args) < 2, summary{}
	for _, name := range os.Args[1:] {
		var done summary
		file, err := os.Open(name)
		if err == nil {
			done, err = check(file)
			file.Close()
		}
		if err != nil {
			failed = true
			fmt.Printf("NOT LINEARIZABLE %s\n%v\n", name, err)
		}
		fmt.Printf("%s: %v\n", name, done)
		total = total.plus(done)
	}
	fmt.Printf("%d files: %v in %.1f s\n", len(os.Args)-1, total, time.Since(began).Seconds())
	if failed {
		os.Exit(1)
	}
}
