"""What a Kafka cluster reports, and how a slice of its log is read. Nothing here decides what is loaded."""
