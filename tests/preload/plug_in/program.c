/* Loads a library, beside an eventfd. */
#include <dlfcn.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	alarm(100);
	if (count != 2 || eventfd(0, 0) < 0 || !dlopen(arguments[1], RTLD_NOW)) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	return 0;
}
