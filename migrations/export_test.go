package migrations

// Provider lets the test of the way back reach goose; walpost itself only goes forward.
var Provider = Set.provider
