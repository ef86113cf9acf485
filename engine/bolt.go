// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/bbolt"
)

// The formats of the database and of the records in it have one number, so that an older
// sandflow refuses the whole journal at once: record by record it could only take the pods
// that it cannot read for damaged. A database of an older format gets the new number when
// it is opened, before any record of the new format is written.
const (
	boltFormat   = recordVersion
	oldestFormat = 1
)

// lockTimeout is how long OpenBolt waits for another daemon to let go.
const lockTimeout = time.Second

var (
	metaBucket    = []byte("meta")
	recordsBucket = []byte("records")
	formatKey     = []byte("format")
)

type boltJournal struct{ db *bbolt.DB }

// OpenBolt opens or makes the journal at path, mode 0600. It fails if another
// process has it open, if it is not a database, or if another sandflow has
// written it in a format that this one does not know; then it is left as it is.
func OpenBolt(path string) (Journal, error) {
	var j *boltJournal
	err := guard(func() error { // bbolt panics on some broken pages
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{
			Timeout: lockTimeout, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		})
		if err != nil {
			return err
		}
		j = &boltJournal{db: db}
		return db.Update(prepare)
	})
	if err != nil {
		if j != nil {
			err = errors.Join(err, j.db.Close())
		}
		return nil, fmt.Errorf("open the journal %s: %w", path, err)
	}
	return j, nil
}

// prepare checks the format, and writes it into a new database or one of an older format.
func prepare(tx *bbolt.Tx) error {
	meta, err := tx.CreateBucketIfNotExists(metaBucket)
	if err != nil {
		return err
	}
	n := 0
	if have := meta.Get(formatKey); have != nil {
		if n, err = strconv.Atoi(string(have)); err != nil {
			return fmt.Errorf("read its format: %w", err)
		}
		if err := knownFormat(n); err != nil {
			return err
		}
	}
	if n != boltFormat {
		if err := meta.Put(formatKey, []byte(strconv.Itoa(boltFormat))); err != nil {
			return err
		}
	}
	_, err = tx.CreateBucketIfNotExists(recordsBucket)
	return err
}

func knownFormat(n int) error {
	switch {
	case n > boltFormat:
		return fmt.Errorf("it has format %d, this sandflow knows %d to %d: %w; start that one again, or drain the node first",
			n, oldestFormat, boltFormat, errNewer)
	case n < oldestFormat:
		return fmt.Errorf("it has format %d, this sandflow knows %d to %d: it is too old", n, oldestFormat, boltFormat)
	}
	return nil
}

func (j *boltJournal) Load(f func(key string, data []byte) error) error {
	return guard(func() error {
		return j.db.View(func(tx *bbolt.Tx) error {
			return tx.Bucket(recordsBucket).ForEach(func(k, v []byte) error {
				return f(string(k), bytes.Clone(v)) // v is only valid in the transaction
			})
		})
	})
}

func (j *boltJournal) Write(changes []Change) error {
	return j.db.Update(func(tx *bbolt.Tx) error {
		records := tx.Bucket(recordsBucket)
		for _, c := range changes {
			var err error
			if c.Data == nil {
				err = records.Delete([]byte(c.Key))
			} else {
				err = records.Put([]byte(c.Key), c.Data)
			}
			if err != nil {
				return fmt.Errorf("write %q: %w", c.Key, err)
			}
		}
		return nil
	})
}

func (j *boltJournal) Close() error { return j.db.Close() }
