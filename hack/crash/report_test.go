// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandflow-cri/sandflow/hack/harness"
)

// full says whether the whole matrices are asked for, and not the short form of "make test".
func full() bool { return os.Getenv("SANDFLOW_MATRIX") == "full" }

// table is one table of the report.
type table struct {
	key, title, text string
	columns          []string
	rows             [][]string
}

// tables are filled by the tests, and written when all have run.
var tables = []*table{
	{
		key: "crash", title: "The daemon is killed (SIGKILL)",
		text: `What a client finds after the next start, by where in which call the daemon was killed. In
all rows the client then repeats its call, the pod lives on to its end, and the node is as it was before.`,
		columns: []string{"call", "place", "killed before it", "killed after it", "twice in a row"},
	},
	{
		key: "recovery", title: "… and again while it recovers",
		text:    `A create is interrupted, then the daemon is killed while it takes up what the crash left.`,
		columns: []string{"interrupted", "place in the next start", "killed before it", "killed after it"},
	},
	{
		key: "others", title: "Others are killed",
		text:    `What the call answers, and what the client finds after it.`,
		columns: []string{"who", "when", "the call answers", "the client finds"},
	},
	{
		key: "faults", title: "Actions fail",
		text: `What the call answers by what its action does, once or for ever. In all rows nothing is left behind
after the call, and the same call succeeds when the fault is over.`,
		columns: []string{"action", "fails", "fails at its end", "is slower than the caller waits", "hangs", "panics"},
	},
	{
		key: "undos", title: "Undos fail",
		text: `What is stuck is listed NOTREADY, in "sandflow flows" with its reason and tries, by the doctor, and in
the metric sandflow_stuck_oldest_seconds. When the fault is over all of it is gone within one try.`,
		columns: []string{"action", "fails once", "fails ten times", "for ever", "is slower than the caller waits", "hangs", "panics"},
	},
	{
		key: "node", title: "The node fails",
		text: `What a client's calls answer while it lasts. When it is over, what is stuck goes within one try, and
nothing is left.`,
		columns: []string{"what", "RunPodSandbox", "CreateContainer", "StopPodSandbox and RemovePodSandbox", "meanwhile that pod is", "afterwards"},
	},
	{
		key: "clock", title: "The clock is set",
		text: `While a container is being stopped, another ends, one writes its log and a pod is stuck, the wall
clock of the daemon and its shims is set; then the daemon is killed and started again. The next sandbox of a pod, and
the next container of a name, must be told to be created later than the ones before, since kubelet goes by that.`,
		columns: []string{"clock", "what is stuck is tried again, after the fault's end, within", "a stop with 2 s of grace takes", "start and end of a container", "the next sandbox is", "events"},
	},
	{
		key: "mutations", title: "Undos that do nothing",
		text: `One undo is made to do nothing and to say that all is well. The world count finds it when the subject
is down where it was before; later, other actions may remove what is left, as the rest of a pod goes. What
is left at the end of the pod's life the doctor finds too, and the next start sweeps it. The matrices of crashes
and of faults make this count at each of their places. Chaos makes it when pods are gone, and so finds the eight
that leave something then (` + "`hack/chaos.TestBrokenUndoIsFound`" + `). The undo of nri-start is the one that may as
well do nothing.`,
		columns: []string{"action", "found by the world count", "left at the end of the pod", "the doctor", "left after the next start"},
	},
}

// report adds a row; empty cells were not part of the run.
func report(key string, cells ...any) {
	var row []string
	for _, c := range cells {
		switch c := c.(type) {
		case string:
			row = append(row, c)
		case []string:
			row = append(row, c...)
		}
	}
	for _, t := range tables {
		if t.key == key {
			t.rows = append(t.rows, row)
		}
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	if l, ok := harness.Here(); ok {
		if err := writeReport(filepath.Join(l.Build, "reports"), code == 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// writeReport prints the tables, keeps them in a file, and puts those of a full run into the documentation.
func writeReport(dir string, passed bool) error {
	text := markdown()
	if len(text) == 0 {
		return nil
	}
	if _, err := os.Stdout.Write(text); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "crash.md"), text, 0o644); err != nil {
		return err
	}
	doc := os.Getenv("SANDFLOW_MATRIX_DOC")
	if doc == "" || !passed {
		return nil
	}
	return insert(doc, text)
}

func markdown() []byte {
	var b bytes.Buffer
	for _, t := range tables {
		if len(t.rows) == 0 {
			continue
		}
		fmt.Fprintf(&b, "### %s\n\n%s\n\n", t.title, strings.ReplaceAll(t.text, "\n", " "))
		line(&b, t.columns)
		line(&b, strings.Split(strings.Repeat("--- ", len(t.columns)), " ")[:len(t.columns)])
		for _, r := range t.rows {
			line(&b, r)
		}
		fmt.Fprintln(&b)
	}
	return b.Bytes()
}

func line(b *bytes.Buffer, cells []string) {
	for _, c := range cells {
		fmt.Fprintf(b, "| %s ", strings.ReplaceAll(c, "|", "\\|"))
	}
	fmt.Fprintln(b, "|")
}

// Marks around what is generated in the documentation.
const (
	begin = "<!-- make crash: begin -->\n"
	end   = "<!-- make crash: end -->\n"
)

func insert(path string, text []byte) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(raw), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s does not have the marks for the tables", path)
	}
	return os.WriteFile(path, []byte(before+begin+"\n"+string(text)+end+after), 0o644)
}
