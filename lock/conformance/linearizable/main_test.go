package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// Times are milliseconds, and the ttl is 2000 of them: a client that says nothing may be replaced 400 ms after it has
// said that it holds the key. A line is `CLIENT OPERATION INVOKE RETURN OUTCOME [TOKEN]`; no time to return is `-`.
var histories = []struct {
	name, lines string
	rejected    string // What the message contains. Empty: the history is right.
}{
	{"one after the other", `
		1 try 0 10 granted 1
		2 try 20 30 refused
		1 held 40 50 yes 1
		1 write 45 47 ok 1
		1 release 60 70 released
		2 try 65 80 granted 2
		1 write 90 95 refused 1
		1 held 90 95 no
		2 write 96 99 ok 2`, ""},
	{"the holder is killed, and another one gets the key after its lease", `
		1 lock 0 10 granted 1
		2 lock 20 2500 granted 2
		2 held 2510 2520 yes 2`, ""},
	{"the holder is stopped for longer than its lease", `
		1 lock 0 10 granted 1
		1 held 20 3000 yes 1
		2 lock 30 2500 granted 2
		1 lost 3001 3001 lost 1
		1 held 3010 3020 no
		1 write 3010 3020 refused 1`, ""},
	{"a lease that is over does not close the fence", `
		1 lock 0 10 granted 1
		1 lost 1700 1700 lost 1
		1 write 1800 1810 ok 1
		2 lock 1900 2000 granted 2`, ""},
	{"the answer to a release is lost", `
		1 lock 0 10 granted 1
		1 release 20 - unknown
		1 write 30 40 ok 1
		2 lock 50 60 granted 2`, ""},
	{"a release without an answer takes effect late", `
		1 lock 0 10 granted 1
		1 release 20 - unknown
		1 write 500 510 ok 1
		2 lock 30 600 granted 2`, ""},
	{"a request without an answer takes effect", `
		1 lock 0 - unknown
		1 held 100 110 yes 4
		1 release 120 130 released
		2 lock 140 150 granted 5`, ""},
	{"a request without an answer, of a client that was killed", `
		1 lock 0 - unknown
		2 lock 20 30 granted 2
		1 release 40 50 released`, ""},
	{"a session is closed", `
		1 lock 0 10 granted 1
		1 close 20 30 ok
		2 lock 25 40 granted 2`, ""},
	{"the answers of a hand-over cross", `
		1 lock 0 10 granted 1
		2 lock 20 40 granted 2
		1 release 30 50 released`, ""},
	{"tokens above 2^53", `
		1 lock 0 10 granted 9007199254740994
		1 release 20 30 released
		1 lock 40 50 granted 9007199254740995`, ""},

	{"two holders, and the first one still says so", `
		1 lock 0 10 granted 1
		2 lock 1000 1010 granted 2
		1 held 1020 1030 yes 1`, "no place for `client 2: grant 2`"},
	{"two holders, and the first one had said so just before", `
		1 lock 0 10 granted 1
		1 held 900 910 yes 1
		2 lock 1000 1010 granted 2`, "no place for `client 2: grant 2`"},
	{"two holders, and the first one releases it later", `
		1 lock 0 10 granted 1
		2 lock 1000 1010 granted 2
		1 release 1020 1030 released`, "no place for `client 2: grant 2`"},
	{"two holders, and the second one was granted the key while the answer of the first was under way", `
		1 lock 0 10 granted 1
		1 release 500 510 released
		2 lock 300 310 granted 2`, "no place for `client 2: grant 2`"},
	{"what was lost comes back", `
		1 lock 0 10 granted 1
		1 lost 1600 1600 lost 1
		1 held 1700 1710 yes 1`, "no place for `client 1: hold 1`"},
	{"a client has said that it does not hold the key, and holds it again", `
		1 lock 0 10 granted 1
		1 held 20 30 no
		1 held 40 50 yes 1`, "no place for `client 1: hold 1`"},
	{"a client holds a key that it has released", `
		1 lock 0 10 granted 1
		1 release 20 30 released
		1 held 40 50 yes 1`, "no place for `client 1: hold 1`"},
	{"a key is released twice", `
		1 lock 0 10 granted 1
		1 release 20 30 released
		1 release 40 50 released`, "no place for `client 1: release 1`"},
	{"a client releases what it never had", `
		0 release 0 10 released
		2 lock 20 30 granted 1`, "no place for `client 0: release 0`"},
	{"a client names another one's token", `
		1 lock 0 10 granted 1
		2 held 20 30 yes 1`, "no place for `client 2: hold 1`"},
	{"a token goes back", `
		1 lock 0 10 granted 5
		1 release 20 30 released
		2 lock 40 50 granted 4`, "no place for `client 2: grant 4`"},
	{"a token is used twice", `
		1 lock 0 10 granted 5
		1 release 20 30 released
		2 lock 40 50 granted 5`, "no place for `client 2: grant 5`"},
	{"a token changes during a term", `
		1 lock 0 10 granted 5
		1 held 20 30 yes 6`, "no place for `client 1: hold 6`"},
	{"a write by an old token after one by a newer token", `
		1 lock 0 10 granted 1
		2 lock 20 2500 granted 2
		2 write 2510 2520 ok 2
		1 write 2530 2540 ok 1`, "no place for `client 1: write 1`"},
	{"a write by an old token after the next grant", `
		1 lock 0 10 granted 1
		2 lock 20 2500 granted 2
		1 write 2530 2540 ok 1`, "no place for `client 1: write 1`"},
	{"a write after the release", `
		1 lock 0 10 granted 1
		1 release 20 30 released
		1 write 40 50 ok 1`, "no place for `client 1: write 1`"},
	{"a write by a token that was never granted", `
		1 lock 0 10 granted 1
		1 write 40 50 ok 2`, "no place for `client 1: write 2`"},
	{"an empty history", "", "no key was granted"},
	{"a history of refusals", "1 try 0 10 refused", "no key was granted"},
}

// written returns lines in the format of a history.
func written(t *testing.T, lines string) string {
	text := `{"run":"1 a test","client":1,"operation":"open","invoke":0,"return":0,"outcome":"ok","ttl_ms":2000}` + "\n"
	for line := range strings.Lines(strings.TrimSpace(lines)) {
		r, returns := record{Run: "1 a test", Key: "k"}, ""
		fmt.Sscan(line, &r.Client, &r.Operation, &r.Invoke, &returns, &r.Outcome, &r.Token)
		r.Invoke *= 1_000_000
		if returns != "-" && returns != "" {
			r.Return = new(int64)
			fmt.Sscan(returns, r.Return)
			*r.Return *= 1_000_000
		}
		if r.Operation == "close" {
			r.Key = ""
		}
		bytes, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if line != "" {
			text += string(bytes) + "\n"
		}
	}
	return text
}

func TestHistories(t *testing.T) {
	for _, h := range histories {
		t.Run(h.name, func(t *testing.T) {
			done, err := check(strings.NewReader(written(t, h.lines)))
			switch {
			case h.rejected == "" && err != nil:
				t.Errorf("it is right, and was rejected: %v", err)
			case h.rejected != "" && err == nil:
				t.Errorf("it is wrong, and was accepted: %v", done)
			case h.rejected != "" && !strings.Contains(err.Error(), h.rejected):
				t.Errorf("it is wrong because of %q, and was rejected because of %v", h.rejected, err)
			}
		})
	}
}

// Keys, and runs with keys of the same name, have nothing to do with each other.
func TestRunsAndKeysAreSeparate(t *testing.T) {
	first := written(t, "1 lock 0 10 granted 5\n1 close 3000 3010 ok")
	other := written(t, "2 lock 20 30 granted 4")
	for _, changed := range []string{strings.ReplaceAll(other, "1 a test", "2 a test"), strings.ReplaceAll(other, `"k"`, `"l"`)} {
		if _, err := check(strings.NewReader(first + changed)); err != nil {
			t.Error(err)
		}
	}
	if _, err := check(strings.NewReader(first + other)); err == nil {
		t.Error("two clients hold one key, and it was accepted")
	}
}

func TestWhatIsNoHistory(t *testing.T) {
	if _, err := check(strings.NewReader("{}\nno JSON")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Error(err)
	}
}
