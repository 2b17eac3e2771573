/* The process of a pod's sandbox: waits for a signal to end, and reaps orphaned processes. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, NULL, WNOHANG) > 0) { } }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap); for (;;) pause(); }
