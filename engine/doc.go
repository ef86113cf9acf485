// Copyright The sandflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine moves subjects (pods, containers) up and down ladders of
// reversible actions, so that nothing is ever half-made and forgotten.
//
// A workflow is a ladder. Its up flows lead from the ground from station to
// station; each is a list of steps, and a step is a set of actions that run
// side by side. Going down undoes in reverse what was entered. Rollback of a
// failed climb, recovery after a crash, retry of a stuck descent, and a descent
// that was asked for are the same code (goDown).
//
//	           Climb                                 Climb
//	ground ─────────────▶ CLIMBING ──arrived──▶ STANDING at a station
//	(no record)            │    ▲                   │         ▲
//	   ▲                   │    └── the next flow ──┤         │
//	   │            failed,│                        │Descend  │
//	   │         cancelled,│                        │         │
//	   │             crash ▼                        ▼         │
//	   └──at the ground── DESCENDING ◀──────────────┘         │
//	                       │  ▲  └──at a station above it─────┘
//	              an undo  │  │ back-off, Descend
//	               failed  ▼  │
//	                      STUCK
//
// With failover off a failed climb stays, STANDING where its flow began with
// its steps still entered; the next Descend undoes them.
//
// # What holds
//
//   - The record is in the journal, synced, before the first step of a flow is
//     entered, with all steps that may be, and after arrival; going down the same.
//     A record that is CLIMBING or DESCENDING at boot descends to its goal: where
//     its flow began, or where it was going. So SIGKILL at any moment leaves
//     nothing that Boot does not finish or undo. A step may be in the record and
//     not be entered, or be undone already: undoing nothing is success.
//   - What is entered is undone, whether its Do succeeded or not.
//   - A failed Climb returns after its rollback. Undos run on a context without
//     the caller's end, each bounded by Options.UndoTimeout.
//   - A descent stops at the step that will not go. All undos of that step are
//     tried. The subject is STUCK, keeps its name, and is seen.
//   - Moves of one subject run one after the other, under its token. Waiting for
//     the token ends with the caller's context. Reads and Amend never wait for a
//     move, and no move waits for one of another subject, except for a name, or
//     a place of a limited flow before its own move has begun.
//   - Going down is never refused by a limit. The limit of a down flow delays
//     what callers ask for, never a rollback, a retry or a recovery.
//   - A subscriber is told every change that readers can see, once and in order,
//     from the views that it began with. One that is too slow is told that too, and
//     holds up nobody.
//   - Panics of actions and observers are errors (*PanicError).
package engine
