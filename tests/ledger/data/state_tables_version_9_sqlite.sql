CREATE TABLE IF NOT EXISTS batch_schemas (
	batch_id BIGINT NOT NULL,
	part VARCHAR(20) NOT NULL,
	schema_id BIGINT NOT NULL,
	digest VARCHAR(64) NOT NULL,
	PRIMARY KEY (batch_id, part, schema_id)
);

CREATE TABLE IF NOT EXISTS consumed_offsets (
	consumer_group VARCHAR(250) NOT NULL,
	topic VARCHAR(249) NOT NULL,
	partition INTEGER NOT NULL,
	offset_value BIGINT NOT NULL,
	topic_id VARCHAR(40),
	leader_epoch INTEGER,
	record_timestamp DATETIME,
	batch_id BIGINT NOT NULL,
	updated_at DATETIME NOT NULL,
	PRIMARY KEY (consumer_group, topic, partition)
);

CREATE TABLE IF NOT EXISTS consumer_groups (
	group_id VARCHAR(250) NOT NULL,
	cluster_id VARCHAR(250),
	generation BIGINT NOT NULL,
	epoch BIGINT NOT NULL,
	lease_owner TEXT,
	lease_expires_at DATETIME,
	PRIMARY KEY (group_id)
);

CREATE TABLE IF NOT EXISTS dead_letters (
	batch_id BIGINT NOT NULL,
	topic VARCHAR(249) NOT NULL,
	partition INTEGER NOT NULL,
	offset_value BIGINT NOT NULL,
	consumer_group VARCHAR(250) NOT NULL,
	"key" BLOB,
	value BLOB,
	headers TEXT,
	record_timestamp DATETIME,
	error TEXT NOT NULL,
	error_class VARCHAR(20),
	schema_id BIGINT,
	publishing VARCHAR(80),
	PRIMARY KEY (batch_id, topic, partition, offset_value)
);

CREATE INDEX IF NOT EXISTS dead_letters_with_contents ON dead_letters (consumer_group, batch_id) WHERE coalesce(error_class, '') NOT IN ('dropped', 'size');

CREATE TABLE IF NOT EXISTS offset_batches (
	batch_id INTEGER NOT NULL,
	consumer_group VARCHAR(250) NOT NULL,
	generation BIGINT NOT NULL,
	kind VARCHAR(20) NOT NULL,
	state VARCHAR(20) NOT NULL,
	attempt INTEGER NOT NULL,
	epoch BIGINT,
	dag_id VARCHAR(250),
	task_id VARCHAR(250),
	run_id VARCHAR(250),
	map_index INTEGER,
	try_number INTEGER,
	target_table TEXT,
	staging_uri TEXT,
	transform TEXT,
	fingerprint VARCHAR(64),
	records BIGINT,
	row_count BIGINT,
	dead_letters BIGINT,
	scenario TEXT,
	reason TEXT,
	who TEXT,
	planned_at DATETIME NOT NULL,
	staged_at DATETIME,
	committed_at DATETIME,
	triggered_by TEXT,
	os_user TEXT,
	database_user TEXT,
	records_since_ms BIGINT,
	records_until_ms BIGINT,
	added_columns TEXT,
	letters_topic VARCHAR(249),
	letters_sent_at DATETIME,
	publishing_at DATETIME,
	files_since DATETIME,
	outputs TEXT,
	PRIMARY KEY (batch_id)
);

CREATE INDEX IF NOT EXISTS offset_batches_by_group ON offset_batches (consumer_group, batch_id);

CREATE INDEX IF NOT EXISTS offset_batches_by_run ON offset_batches (consumer_group, run_id, task_id);

CREATE UNIQUE INDEX IF NOT EXISTS offset_batches_one_ahead ON offset_batches (consumer_group) WHERE kind = 'load' AND state IN ('ahead');

CREATE UNIQUE INDEX IF NOT EXISTS offset_batches_one_open ON offset_batches (consumer_group) WHERE kind = 'load' AND state IN ('planned', 'staged');

CREATE INDEX IF NOT EXISTS offset_batches_publishing ON offset_batches (consumer_group) WHERE publishing_at IS NOT NULL;

CREATE INDEX IF NOT EXISTS offset_batches_unsent ON offset_batches (consumer_group) WHERE letters_topic IS NOT NULL AND letters_sent_at IS NULL;

CREATE INDEX IF NOT EXISTS offset_batches_with_files ON offset_batches (consumer_group) WHERE files_since IS NOT NULL;

CREATE TABLE IF NOT EXISTS offset_gaps (
	batch_id BIGINT NOT NULL,
	topic VARCHAR(249) NOT NULL,
	partition INTEGER NOT NULL,
	start_offset BIGINT NOT NULL,
	end_offset BIGINT NOT NULL,
	cause TEXT NOT NULL,
	decision TEXT NOT NULL,
	PRIMARY KEY (batch_id, topic, partition, start_offset)
);

CREATE TABLE IF NOT EXISTS offset_ranges (
	batch_id BIGINT NOT NULL,
	topic VARCHAR(249) NOT NULL,
	partition INTEGER NOT NULL,
	topic_id VARCHAR(40),
	start_offset BIGINT NOT NULL,
	end_offset BIGINT NOT NULL,
	target_offset BIGINT NOT NULL,
	leader_epoch INTEGER,
	end_epoch INTEGER,
	replaced_from BIGINT,
	replaced_to BIGINT,
	records BIGINT,
	dead_letters BIGINT,
	bytes BIGINT,
	first_timestamp DATETIME,
	last_timestamp DATETIME,
	how VARCHAR(20) NOT NULL,
	PRIMARY KEY (batch_id, topic, partition)
);

CREATE TABLE IF NOT EXISTS offsets_installation (
	number INTEGER NOT NULL,
	installation_id VARCHAR(40) NOT NULL,
	PRIMARY KEY (number)
);

CREATE TABLE IF NOT EXISTS offsets_schema_version (
	version INTEGER NOT NULL,
	PRIMARY KEY (version)
);

CREATE TABLE IF NOT EXISTS replaced_output (
	batch_id BIGINT NOT NULL,
	replaced_batch_id BIGINT NOT NULL,
	topic VARCHAR(249) NOT NULL,
	partition INTEGER NOT NULL,
	row_count BIGINT NOT NULL,
	dead_letters BIGINT NOT NULL,
	PRIMARY KEY (batch_id, replaced_batch_id, topic, partition)
);

CREATE TABLE IF NOT EXISTS schema_texts (
	digest VARCHAR(64) NOT NULL,
	type VARCHAR(20) NOT NULL,
	texts TEXT NOT NULL,
	PRIMARY KEY (digest)
);

INSERT INTO offsets_schema_version (version) VALUES (9);
