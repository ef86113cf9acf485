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

// boltFormat is raised when the layout of the database changes.
const boltFormat = 1

// lockTimeout is how long OpenBolt waits for another daemon to let go.
const lockTimeout = time.Second

var (
	metaBucket    = []byte("meta")
	recordsBucket = []byte("records")
	formatKey     = []byte("format")
)

type boltJournal struct{ db *bbolt.DB }

// OpenBolt opens or makes the journal at path, mode 0600. It fails if another
// process has it open, if it is not a database, or if a newer sandflow has
// written it in a format that this one does not know.
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

// prepare checks the format, or writes it into a new database.
func prepare(tx *bbolt.Tx) error {
	meta, err := tx.CreateBucketIfNotExists(metaBucket)
	if err != nil {
		return err
	}
	if have := meta.Get(formatKey); have != nil {
		n, err := strconv.Atoi(string(have))
		if err != nil {
			return fmt.Errorf("read its format: %w", err)
		}
		if n > boltFormat {
			return fmt.Errorf("it has format %d, known is %d: %w", n, boltFormat, errNewer)
		}
	} else if err := meta.Put(formatKey, []byte(strconv.Itoa(boltFormat))); err != nil {
		return err
	}
	_, err = tx.CreateBucketIfNotExists(recordsBucket)
	return err
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
