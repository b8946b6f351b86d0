// What set-up builds gVisor in: go.sum has the hash of every module that goes into it, so no proxy can send another one.
// After a new version: GOFLAGS=-mod=mod go list -deps gvisor.dev/gvisor/runsc, for GOARCH=amd64 and arm64.
module k8e.invalid/gvisor

go 1.26.3

require gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237
