// Long slices, goroutines and a map in a program that is linked statically; prints sums.
package main

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
)

func main() {
	mebibytes, _ := strconv.Atoi(os.Args[1])
	parts := make([][]uint64, mebibytes)
	var group sync.WaitGroup
	for i := range parts {
		group.Add(1)
		go func() {
			defer group.Done()
			parts[i] = make([]uint64, 1<<17)
			for j := range parts[i] {
				parts[i][j] = uint64(i*j) * 2654435761
			}
			sort.Slice(parts[i], func(a, b int) bool { return parts[i][a] < parts[i][b] })
		}()
	}
	group.Wait()
	sum, seen := uint64(0), map[uint64]int{}
	for _, part := range parts {
		for at, value := range part {
			sum = sum*31 + value
			if at%64 == 0 {
				seen[value%10007]++
			}
		}
	}
	fmt.Println(sum, len(seen))
}
