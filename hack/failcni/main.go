// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command failcni is a CNI plugin that does nothing, until it is told to fail: put behind
// other plugins in a chain, it makes an ADD fail after they have done their part. Its
// configuration names a file, which is read at each call and holds one of
//
//	fail ADD            the call of that name fails (ADD, DEL, CHECK, STATUS)
//	sleep ADD 500ms     it takes that much longer
//	hang ADD            it does not return until it is killed
//
// With no file it does nothing. It also keeps a log of calls in the file "log".
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

type conf struct {
	types.NetConf
	// Control is the path of the file with the fault.
	Control string `json:"control"`
	// Log gets a line for each call, "VERB CONTAINERID NETNS"; empty: none.
	Log string `json:"log"`
}

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add:    add,
		Del:    func(a *skel.CmdArgs) error { _, err := call("DEL", a); return err },
		Check:  func(a *skel.CmdArgs) error { _, err := call("CHECK", a); return err },
		Status: func(a *skel.CmdArgs) error { _, err := call("STATUS", a); return err },
		GC:     func(a *skel.CmdArgs) error { _, err := call("GC", a); return err },
	}, version.All, "failcni: fails when told to")
}

// add passes on the result of the plugins before it.
func add(a *skel.CmdArgs) error {
	c, err := call("ADD", a)
	if err != nil {
		return err
	}
	if c.PrevResult == nil {
		return errors.New("failcni must not be the first plugin of a chain")
	}
	return types.PrintResult(c.PrevResult, c.CNIVersion)
}

func call(verb string, a *skel.CmdArgs) (*conf, error) {
	c := &conf{}
	if err := json.Unmarshal(a.StdinData, c); err != nil {
		return nil, fmt.Errorf("could not read the configuration: %w", err)
	}
	if err := version.ParsePrevResult(&c.NetConf); err != nil {
		return nil, fmt.Errorf("could not read the previous result: %w", err)
	}
	if err := note(c.Log, verb, a); err != nil {
		return nil, err
	}
	return c, fault(c.Control, verb)
}

func note(path, verb string, a *skel.CmdArgs) error {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("could not open the log: %w", err)
	}
	_, err = fmt.Fprintln(f, verb, a.ContainerID, a.Netns)
	return errors.Join(err, f.Close())
}

func fault(path, verb string) error {
	raw, err := os.ReadFile(path)
	if path == "" || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("could not read the fault: %w", err)
	}
	words := strings.Fields(string(raw))
	if len(words) < 2 || words[1] != verb {
		return nil
	}
	switch words[0] {
	case "fail":
		return types.NewError(types.ErrTryAgainLater, "failcni was told to fail "+verb, "")
	case "hang":
		time.Sleep(time.Hour)
	case "sleep":
		d, err := time.ParseDuration(words[len(words)-1])
		if err != nil {
			return err
		}
		time.Sleep(d)
	}
	return nil
}
