/* `bcryptprimitives.dll` for programs of Rust in Wine 8, which lacks it: random bytes of the system. Compiled by GCC for
 * Windows with -shared, into the folder of the program. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID bytes, ULONG count);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T count) {
    return count <= MAXDWORD && SystemFunction036(bytes, (ULONG)count);
}
