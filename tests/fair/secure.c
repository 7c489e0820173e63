/* Loads the library given as the first argument. With a second argument it does so in secure-execution mode
 * (AT_SECURE, as for a set-group-ID program). Prints "loaded", or "skipped" if the mode cannot be entered. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	if (count == 3 && strcmp(arguments[2], "enter") == 0) {
		/* The effective group differs from the real one. */
		if (setresgid((gid_t)-1, getgid() + 1, (gid_t)-1) != 0) {
			puts("skipped");
			return 0;
		}
		execl("/proc/self/exe", arguments[0], arguments[1], "entered", NULL);
		return 1;
	}
	if (count == 3 && getauxval(AT_SECURE) == 0)
		puts("skipped");
	else if (dlopen(arguments[1], RTLD_NOW) != NULL)
		puts("loaded");
	return 0;
}
